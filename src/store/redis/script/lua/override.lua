-- Overrides: the size that a limit has for one key.
--
-- A key holds the instant at which the override expires, or 0 if it never does, and the two numbers of its size.

local load, now_hi, now_lo = ...
local keys = load('key')

-- Returns the override that a key holds: an empty string if there is none, or if it has expired.
local function current(key)
  local state, hi, lo = keys.read(key)
  local has_expired = hi < now_hi or hi == now_hi and lo <= now_lo
  if has_expired and hi + lo > 0 then return '' end
  return state
end

-- Sets the override of a key as a request says: for a span, or for good if that is negative; and its size.
local function set(key, text, at)
  local span_hi, span_lo, first, second = struct.unpack('<ddI4I4', text, at)
  if span_hi < 0 then return redis.call('SET', key, keys.encode(0, 0, first, second)) end
  local hi, lo = load('instant').add(span_hi, span_lo, 0, now_hi, now_lo, 0, 1)
  keys.write(key, keys.encode(hi, lo, first, second), hi, lo)
end

return { current = current, set = set }
