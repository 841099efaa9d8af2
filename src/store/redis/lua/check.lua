-- Checks that the server knows the commands that the script calls, and that the user may call them.

local denied, permitted = {}, {}
for name in string.gmatch('time get set setrange del lindex lrange lset ltrim rpush pexpireat', '%a+') do
  local is_known, is_permitted
  if redis.acl_check_cmd then
    is_known, is_permitted = pcall(redis.acl_check_cmd, name, 'ratelimit:')
  else
    -- Redis before 7.0: a call with too few arguments fails before its permission is checked.
    local message = redis.pcall(name).err or ''
    is_known, is_permitted = not string.find(message, 'Unknown'), not string.find(message, 'user')
  end
  if not is_known then return redis.error_reply("ERR unknown command '" .. name .. "'") end
  table.insert(is_permitted and permitted or denied, "'" .. name .. "'")
end
-- If only `time` is permitted, which has no key, the user's keys have another prefix.
if #denied > 0 and table.concat(permitted) ~= "'time'" then
  return redis.error_reply('NOPERM the user has no permissions to run ' .. table.concat(denied, ', '))
end
