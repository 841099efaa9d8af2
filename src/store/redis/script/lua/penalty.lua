-- Penalties: the strikes and lockouts of a key, as src/algorithm/lockout.rs.
--
-- A key holds two instants, the later one first: when its level is forgotten, and when its strikes are forgotten or its
-- lockout ends. The counts are the strikes and the level, plus 64 if there are strikes and the level ends later.

local load, now = ...
local keys = load('key')
local min, unpack = math.min, struct.unpack

local MAX_LEVEL, LEVEL_IS_LATER, MAX_DOUBLINGS = 63, 64, 45

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
    strikes_end = 0,
    level = 0,
    level_end = 0,
  }
  return penalty, next_at
end

-- Reads a key. Returns its state.
local function peek(penalty, key)
  local state, later, earlier, strikes, level = keys.read(key)
  local strikes_end, level_end = later, earlier
  penalty.is_locked_out = false
  if strikes == 0 then
    level_end = later
    penalty.is_locked_out = level > 0 and earlier > now
  elseif level >= LEVEL_IS_LATER then
    strikes_end, level_end, level = earlier, later, level - LEVEL_IS_LATER
  end
  if strikes_end <= now then strikes = 0 end
  if level_end <= now then level = 0 end
  penalty.strikes, penalty.strikes_end, penalty.level, penalty.level_end = strikes, strikes_end, level, level_end
  return state
end

-- Counts a denial of the key that `peek` has read and that is not locked out.
local function strike(penalty, key)
  local strikes, level, later, earlier = penalty.strikes + 1, penalty.level, 0, 0
  if strikes >= penalty.max_strikes then
    strikes, level = 0, min(level + 1, MAX_LEVEL)
    local lockout = min(penalty.first * 2 ^ min(level - 1, MAX_DOUBLINGS), penalty.longest)
    earlier = now + lockout
    later = earlier + (penalty.remembered > 0 and penalty.remembered or lockout)
  else
    later, earlier = penalty.strikes_end, penalty.level_end
    if strikes == 1 then later = now + penalty.within end
    if level > 0 and earlier > later then
      later, earlier, level = earlier, later, level + LEVEL_IS_LATER
    end
  end
  keys.write(key, keys.encode(later, earlier, strikes, level), later)
end

return { parse = parse, peek = peek, strike = strike }
