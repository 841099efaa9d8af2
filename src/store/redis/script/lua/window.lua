-- Windows with a fixed end: fixed windows (tag `w`) and calendar windows (tag `k`), as src/algorithm/aligned_window.rs.
--
-- A key holds the end of its window, and how much was charged in it.

local load, now_hi, now_lo = ...
local keys = load('key')
local read, write, overwrite, encode = keys.read, keys.write, keys.overwrite, keys.encode
local unpack = struct.unpack

local FIXED_WINDOW = 119 -- w

-- Returns the end of the window that contains the present instant, of those between the given edges, in seconds, or false
-- if none does. Scripts know no calendars, so the caller sends the windows around its own time.
local function calendar_window_end(first, second, third, fourth, last)
  local now, hi, lo = now_hi * 1000 + math.floor(now_lo / 1e6), false, 0
  if now >= first and now < last then
    local edge = now < second and second or now < third and third or now < fourth and fourth or last
    hi, lo = math.floor(edge / 1000), math.fmod(edge, 1000) * 1e6
  end
  return hi, lo
end

-- Returns the end of the window of `period` µs that holds the present instant.
local function fixed_window_end(period)
  local rest
  if now_hi < 9007199 then
    rest = math.fmod(now_hi * 1e9 + now_lo, period)
  else
    rest = load('instant').modulo(now_hi, now_lo, period)
  end
  local lo = now_lo + period - rest
  local carry = math.floor(lo / 1e9)
  return now_hi + carry, lo - carry * 1e9
end

-- Reads the arguments of a charge from a request: cost, limit, and the period in µs or five edges in seconds.
local function parse(text, at, tag)
  local cost, limit, period, window_hi, window_lo
  if tag == FIXED_WINDOW then
    cost, limit, period, at = unpack('<ddd', text, at)
    window_hi, window_lo = fixed_window_end(period)
  else
    local a, b, c, d, e
    cost, limit, a, b, c, d, e, at = unpack('<ddddddd', text, at)
    window_hi, window_lo = calendar_window_end(a, b, c, d, e)
  end
  local charge = {
    cost = cost,
    limit = limit,
    window_hi = window_hi,
    window_lo = window_lo,
    hi = 0,
    lo = 0,
    count = 0,
    is_held = false,
  }
  return charge, at
end

-- Returns whether the window has room for a charge, and the key's state.
local function peek(charge, key)
  local state, hi, lo, count = read(key)
  -- A window goes on until its end. It may be a later one than the clock's, after the clock has stepped back.
  charge.is_held = hi > now_hi or hi == now_hi and lo > now_lo
  if not charge.is_held then
    hi, lo, count = charge.window_hi, charge.window_lo, 0
    if not hi then
      local second = string.format('%d', now_hi * 1000 + math.floor(now_lo / 1e6))
      error({ err = 'OUTSIDE ' .. second .. ' s, the present instant, is in no window that was sent' })
    end
  end
  charge.hi, charge.lo, charge.count = hi, lo, count
  local has_room = count + charge.cost <= charge.limit
  return has_room, state
end

-- Charges the window that `peek` has found.
local function commit(charge, key)
  local hi, lo = charge.hi, charge.lo
  local state = encode(hi, lo, charge.count + charge.cost, 0)
  if charge.is_held then
    overwrite(key, '0', state)
  else
    write(key, state, hi, lo)
  end
end

-- Refunds a charge, if the window of its mark has not ended.
local function refund(charge, key, mark_hi, mark_lo)
  local _, hi, lo, count = read(key)
  if hi ~= mark_hi or lo ~= mark_lo or hi < now_hi or hi == now_hi and lo <= now_lo then return end
  if count <= charge.cost then return redis.call('DEL', key) end
  overwrite(key, '0', encode(hi, lo, count - charge.cost, 0))
end

return { parse = parse, peek = peek, commit = commit, refund = refund }
