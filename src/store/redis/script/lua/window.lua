-- Windows with a fixed end: fixed windows (tag `w`) and calendar windows (tag `k`), as src/algorithm/window.rs.
--
-- A key expires at the end of its window. The first count is how much was charged in it.

local load, now = ...
local keys = load('key')
local read, write, overwrite, encode = keys.read, keys.write, keys.overwrite, keys.encode
local unpack = struct.unpack

local FIXED_WINDOW = 119 -- w

-- Returns the end of the window that contains the present instant, of those between the given edges, in seconds, or false
-- if none does. Scripts know no calendars, so the caller sends the windows around its own time.
local function calendar_window_end(first, second, third, fourth, last)
  local seconds, ends = now / 1e6, false
  if seconds >= first and seconds < last then
    ends = (seconds < second and second or seconds < third and third or seconds < fourth and fourth or last) * 1e6
  end
  return ends
end

-- Reads the arguments of a charge from a request: cost, limit, and the period in µs or five edges in seconds.
local function parse(text, at, tag)
  local cost, limit, period, window_end
  if tag == FIXED_WINDOW then
    cost, limit, period, at = unpack('<ddd', text, at)
    window_end = now - math.fmod(now, period) + period
  else
    local a, b, c, d, e
    cost, limit, a, b, c, d, e, at = unpack('<ddddddd', text, at)
    window_end = calendar_window_end(a, b, c, d, e)
  end
  local charge = {
    cost = cost,
    limit = limit,
    window_end = window_end,
    expires = 0,
    count = 0,
    is_held = false,
  }
  return charge, at
end

-- Returns whether the window has room for a charge, and the key's state.
local function peek(charge, key)
  local state, expires, _, count = read(key)
  -- A window goes on until its end. It may be a later one than the clock's, after the clock has stepped back.
  charge.is_held = expires > now
  if not charge.is_held then
    expires, count = charge.window_end, 0
    if not expires then
      local second = string.format('%d', math.floor(now / 1e6))
      error({ err = 'OUTSIDE ' .. second .. ' s, the present instant, is in no window that was sent' })
    end
  end
  charge.expires, charge.count = expires, count
  local has_room = count + charge.cost <= charge.limit
  return has_room, state
end

-- Charges the window that `peek` has found.
local function commit(charge, key)
  local expires = charge.expires
  local state = encode(expires, 0, charge.count + charge.cost, 0)
  if charge.is_held then
    overwrite(key, state)
  else
    write(key, state, expires)
  end
end

-- Refunds a charge, if the window of its mark has not ended.
local function refund(charge, key, mark)
  local _, expires, _, count = read(key)
  if expires ~= keys.decode(mark) or expires <= now then return end
  if count <= charge.cost then return redis.call('DEL', key) end
  overwrite(key, encode(expires, 0, count - charge.cost, 0))
end

-- Gives a charge another limit.
local function resize(charge, limit)
  charge.limit = limit
end

return { parse = parse, peek = peek, commit = commit, refund = refund, resize = resize }
