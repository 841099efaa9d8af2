-- Overrides: the size that a limit has for one key.
--
-- A key holds the instant at which the override expires, or 0 if it never does, and the two numbers of its size.

local load, now = ...
local keys = load('key')

-- Returns the override that a key holds: an empty string if there is none, or if it has expired.
local function current(key)
  local state, expires = keys.read(key)
  if expires > 0 and expires <= now then return '' end
  return state
end

-- Sets the override of a key as a request says: for a span in µs, or for good if that is negative; and its size.
local function set(key, text, at)
  local span, first, second = struct.unpack('<dI4I4', text, at)
  if span < 0 then return redis.call('SET', key, keys.encode(0, 0, first, second)) end
  local expires = now + span
  keys.write(key, keys.encode(expires, 0, first, second), expires)
end

return { current = current, set = set }
