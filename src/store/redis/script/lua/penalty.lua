-- Penalties: the strikes and lockouts of a key, as src/algorithm/lockout.rs.
--
-- A key holds the later one of two instants, and in its two counts how far before that the other one is (in µs, 47
-- bits), whether it is the level that ends later (1 bit), the level (6) and the strikes (10).

local load, now_hi, now_lo = ...
local keys = load('key')
local instant = load('instant')
local add_span, difference = instant.add_span, instant.difference
local floor, min, unpack = math.floor, math.min, struct.unpack

-- The units of the fields in the second count.
local STRIKE, LEVEL, LEVEL_IS_LATER = 4194304, 65536, 32768
local MAX_APART, MAX_LEVEL, MAX_DOUBLINGS = 140737488355327, 63, 45

-- Reads the arguments of a penalty from a request: the strikes that lock a key out (0 if denials are no strikes), how
-- long strikes count, the shortest and the longest lockout, and how long a level is known (0: as long as the lockout).
-- Spans are in µs.
local function parse(text, at)
  local strikes, within, first, longest, remembered, next_at = unpack('<ddddd', text, at)
  local penalty = {
    max_strikes = strikes,
    within = within,
    first = first,
    longest = longest,
    remembered = remembered,
    -- Whether the key is locked out, and its strikes, its level, and when these end.
    is_locked_out = false,
    strikes = 0,
    strikes_end_hi = 0,
    strikes_end_lo = 0,
    level = 0,
    level_end_hi = 0,
    level_end_lo = 0,
  }
  return penalty, next_at
end

-- Reads a key. Returns its state.
local function peek(penalty, key)
  local state, hi, lo, low, packed = keys.read(key)
  local strikes = floor(packed / STRIKE)
  packed = packed - strikes * STRIKE
  local level = floor(packed / LEVEL)
  packed = packed - level * LEVEL
  local level_is_later = packed >= LEVEL_IS_LATER
  if level_is_later then packed = packed - LEVEL_IS_LATER end
  local earlier_hi, earlier_lo = add_span(hi, lo, -(packed * 4294967296 + low))
  penalty.is_locked_out = false
  if strikes == 0 then
    penalty.is_locked_out = level > 0 and difference(earlier_hi, earlier_lo, now_hi, now_lo) > 0
  else
    if level_is_later then hi, lo, earlier_hi, earlier_lo = earlier_hi, earlier_lo, hi, lo end
    if difference(hi, lo, now_hi, now_lo) <= 0 then strikes = 0 end
    penalty.strikes_end_hi, penalty.strikes_end_lo = hi, lo
    hi, lo = earlier_hi, earlier_lo
  end
  if difference(hi, lo, now_hi, now_lo) <= 0 then level = 0 end
  penalty.strikes, penalty.level, penalty.level_end_hi, penalty.level_end_lo = strikes, level, hi, lo
  return state
end

-- Writes strikes and a level. The later instant is (hi, lo), `apart` µs before it is the other one.
local function store(key, strikes, level, apart, hi, lo)
  local high = floor(apart / 4294967296)
  local state = keys.encode(hi, lo, apart - high * 4294967296, strikes * STRIKE + level * LEVEL + high)
  keys.write(key, state, hi, lo)
end

-- Counts a denial of the key that `peek` has read and that is not locked out.
local function strike(penalty, key)
  local strikes, level = penalty.strikes + 1, penalty.level
  if strikes >= penalty.max_strikes then
    level = min(level + 1, MAX_LEVEL)
    local lockout = min(penalty.first * 2 ^ min(level - 1, MAX_DOUBLINGS), penalty.longest)
    local remembered = penalty.remembered > 0 and penalty.remembered or lockout
    local hi, lo = add_span(now_hi, now_lo, lockout)
    hi, lo = add_span(hi, lo, remembered)
    return store(key, 0, level, remembered, hi, lo)
  end
  local hi, lo = penalty.strikes_end_hi, penalty.strikes_end_lo
  if strikes == 1 then hi, lo = add_span(now_hi, now_lo, penalty.within) end
  if level == 0 then return store(key, strikes, 0, 0, hi, lo) end
  local apart = difference(penalty.level_end_hi, penalty.level_end_lo, hi, lo)
  if apart > 0 then
    apart = min(apart, MAX_APART) + LEVEL_IS_LATER * 4294967296
    return store(key, strikes, level, apart, penalty.level_end_hi, penalty.level_end_lo)
  end
  store(key, strikes, level, min(-apart, MAX_APART), hi, lo)
end

return { parse = parse, peek = peek, strike = strike }
