-- Checks that the server knows the commands that the script calls, and that the user may call them on keys of the
-- prefix, ARGV[1]. Returns why the server accepts no writes now, or an empty string.

local key = ARGV[1] .. ':'
local denied = {}
for name in string.gmatch('time get set setrange del lindex lrange lset ltrim rpush pexpireat', '%a+') do
  local is_known, is_permitted
  if redis.acl_check_cmd then
    is_known, is_permitted = pcall(redis.acl_check_cmd, name, key)
  else
    -- Redis before 7.0: a call with too few arguments fails before its permission is checked.
    local message = redis.pcall(name).err or ''
    is_known, is_permitted = not string.find(message, 'Unknown'), not string.find(message, 'user')
  end
  if not is_known then return redis.error_reply("ERR unknown command '" .. name .. "'") end
  if not is_permitted then table.insert(denied, "'" .. name .. "'") end
end
if #denied > 0 then
  return redis.error_reply('NOPERM the user has no permissions to run ' .. table.concat(denied, ', ') .. ' on ' .. key)
end
-- Writes nothing, but is checked like any write.
local refused = redis.pcall('SETRANGE', key, '0', '')
return type(refused) == 'table' and refused.err or ''
