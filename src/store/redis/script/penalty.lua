-- The twin of src/algorithm/lockout.rs. A key holds the instant at which it is forgotten, and in its two counts how far
-- before that (in µs, 47 bits) the other of its two instants is, whether the level is known longer than
-- strikes count (1), the level (6) and the strikes (10). A denial is a strike if there is a number of them.
local penalties = { numbers = '<ddddd' }
local STRIKE, LEVEL, LONGER, APART = 4194304, 65536, 32768, 140737488355327

-- Whether the key is refused, and what it holds.
function penalties.peek(charge)
  local raw, hi, lo, low, rest = read(charge.key)
  charge.held = raw
  local strikes = floor(rest / STRIKE)
  rest = rest - strikes * STRIKE
  local level = floor(rest / LEVEL)
  rest = rest - level * LEVEL
  local longer = rest >= LONGER
  if longer then rest = rest - LONGER end
  local other_hi, other_lo = plus(hi, lo, -(rest * 4294967296 + low))
  if strikes == 0 then
    charge.refused = level > 0 and apart(other_hi, other_lo, now_hi, now_lo) > 0
  else
    charge.refused = false
    if longer then hi, lo, other_hi, other_lo = other_hi, other_lo, hi, lo end
    if apart(hi, lo, now_hi, now_lo) <= 0 then strikes = 0 end
    charge.hi, charge.lo = hi, lo
    hi, lo = other_hi, other_lo
  end
  if apart(hi, lo, now_hi, now_lo) <= 0 then level = 0 end
  charge.strikes, charge.level, charge.known_hi, charge.known_lo = strikes, level, hi, lo
end

local function hold(key, strikes, level, span, hi, lo)
  local high = floor(span / 4294967296)
  write(key, hi, lo, span - high * 4294967296, strikes * STRIKE + level * LEVEL + high, hi, lo)
end

-- Notes that a key is denied that is not refused.
function penalties.strike(charge)
  local key, strikes, level = charge.key, charge.strikes + 1, charge.level
  if strikes >= charge[1] then
    level = math.min(level + 1, 63)
    local span = math.min(charge[3] * 2 ^ math.min(level - 1, 45), charge[4])
    local kept = charge[5] > 0 and charge[5] or span
    local hi, lo = plus(now_hi, now_lo, span)
    hi, lo = plus(hi, lo, kept)
    return hold(key, 0, level, kept, hi, lo)
  end
  local hi, lo = charge.hi, charge.lo
  if strikes == 1 then hi, lo = plus(now_hi, now_lo, charge[2]) end
  if level == 0 then return hold(key, strikes, 0, 0, hi, lo) end
  local longer = apart(charge.known_hi, charge.known_lo, hi, lo)
  if longer > 0 then
    longer = math.min(longer, APART) + LONGER * 4294967296
    return hold(key, strikes, level, longer, charge.known_hi, charge.known_lo)
  end
  hold(key, strikes, level, math.min(-longer, APART), hi, lo)
end
