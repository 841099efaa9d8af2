-- Penalties: the strikes and lockouts of a key, as src/algorithm/penalty.rs. The amount is the strikes that lock a key
-- out, the span is for how long strikes count, and the capacity is the first lockout in µs.
--
-- A key holds two instants, the later one first: when its level is forgotten, and when its strikes are forgotten or its
-- lockout ends. The counts are the strikes and the level, plus 64 if there are strikes and the level ends later.

local MAX_LEVEL, LEVEL_IS_LATER, MAX_DOUBLINGS = 63, 64, 45

-- Returns whether the key is not locked out.
local function peek(now, cost, hard, amount, span, expires, at, strikes, level)
  return strikes > 0 or level == 0 or at <= now, expires, at, strikes, level
end

-- Returns the state after a strike of a key that is not locked out.
local function charge(now, cost, first, amount, span, later, earlier, strikes, level, longest, memory)
  local strikes_end, level_end = later, earlier
  if strikes == 0 then
    level_end = later
  elseif level >= LEVEL_IS_LATER then
    strikes_end, level_end, level = earlier, later, level - LEVEL_IS_LATER
  end
  if level_end <= now then level = 0 end
  strikes = strikes_end <= now and 1 or strikes + 1
  if strikes >= amount then
    level = math.min(level + 1, MAX_LEVEL)
    local lockout = math.min(first * 2 ^ math.min(level - 1, MAX_DOUBLINGS), longest)
    return now + lockout + (memory > 0 and memory or lockout), now + lockout, 0, level, 0
  end
  if strikes == 1 then strikes_end = now + span end
  if level > 0 and level_end > strikes_end then return level_end, strikes_end, strikes, level + LEVEL_IS_LATER, 0 end
  return strikes_end, level_end, strikes, level, 0
end

return peek, charge
