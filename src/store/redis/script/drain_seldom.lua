-- What drain.lua seldom needs: refunds, and rates that have changed.

-- What the bits above those count that an amount takes.
local function one_of(amount)
  local _, bits = frexp(amount)
  return 2 ^ bits
end

-- The present tick, in that.
local function tick_of(one)
  return floor(rest_of(now_hi, now_lo, 70368744177664 / one) / 131072) * 8 * one
end

-- Whether an instant is near enough to leave room for an amount: 2^63 µs.
local function is_near(hi, lo)
  return hi < 9223372036 or (hi == 9223372036 and lo < 854775808)
end

-- What a key holds says: the instant, the fraction, the stamp, and the amount by which it is read.
local function known(amount, hi, lo, rest, written)
  if written > 0 then hi = hi % 1099511627776 end
  local near = is_near(hi, lo)
  if near and written > 0 then
    local low = rest % one_of(written)
    return hi, lo, low, rest - low, written
  end
  -- Before amounts were kept, or where there is no room for one, it is the limit's own.
  if near then rest = math.min(rest, amount - 1) end
  local one = one_of(amount)
  return hi, lo, rest, one <= 33554432 and 7 * one or 0, amount
end

local function recall(charge)
  local raw, hi, lo, rest, written = read(charge.key)
  return raw, known(charge[2], hi, lo, rest, written)
end

-- A debt that takes (hi, lo, n) to pay at the rate `written`, at the rate `amount`: the same number of
-- tokens, multiplied and divided by hand, a limb of 1e9 at a time.
local function at_rate(hi, lo, n, written, amount)
  local carry, low = divide(written, lo, 1e9)
  local top, high = divide(written, hi, 1e9)
  low = low + n
  local more = floor(low / 1e9)
  high, low = high + carry + more, low - more * 1e9
  more = floor(high / 1e9)
  top, high = top + more, high - more * 1e9
  local whole = floor(top / amount)
  local rest = top - whole * amount
  local function digit(limb)
    local quotient, left = divide(rest, 1e9, amount)
    local sum = left + limb
    local extra = floor(sum / amount)
    rest = sum - extra * amount
    return quotient + extra
  end
  high = digit(high)
  low = digit(low)
  hi = whole * 1e9 + high
  -- 2^47: src/algorithm/gcra.rs says why.
  if hi >= 140737488355328 then return 140737488355328, 0, 0 end
  return hi, low, rest
end

-- What is owed on a debt that is paid at (hi, lo), less rest, by the amount `written`.
local function owed(amount, hi, lo, rest, written)
  local n = 0
  if rest > 0 then
    local whole = ceil(rest / written)
    hi, lo = plus(hi, lo, -whole)
    n = whole * written - rest
  end
  hi, lo, n = sub(hi, lo, n, now_hi, now_lo, 0, written)
  if hi < 0 then return 0, 0, 0 end
  if written ~= amount then return at_rate(hi, lo, n, written, amount) end
  return hi, lo, n
end

local function first_stamp(amount)
  local one = one_of(amount)
  return one <= 33554432 and tick_of(one) + 7 * one or 0
end

-- What is owed from now on; lo may be too much for one limb.
local function remember(key, amount, hi, lo, n, stamp)
  local rest = 0
  hi, lo = hi + now_hi, lo + now_lo
  if n > 0 then lo, rest = lo + 1, amount - n end
  hi, lo = plus(hi, lo, 0)
  if not is_near(hi, lo) then return write(key, hi, lo, rest, 0, hi, lo) end
  write(key, hi, lo, stamp + rest, amount, hi, lo)
end

-- Has what is still owed paid at the limit's own rate from now on.
local function adopt(key, amount, hi, lo, n)
  if hi + lo + n > 0 then remember(key, amount, hi, lo, n, first_stamp(amount)) end
end

-- Gives back a span of what is owed on a debt.
local function give_back(charge, hi, lo, rest, stamp, written, back_hi, back_lo, back_n)
  local amount, n = charge[2]
  hi, lo, n = owed(amount, hi, lo, rest, written)
  if not more(hi, lo, n, back_hi, back_lo, back_n) then return call('DEL', charge.key) end
  if written ~= amount then stamp = first_stamp(amount) end
  hi, lo, n = sub(hi, lo, n, back_hi, back_lo, back_n, amount)
  remember(charge.key, amount, hi, lo, n, stamp)
end

-- How long after a charge at (then_hi, then_lo), since_hi and since_lo ago, the last one can have been.
local function last_charge(stamp, mark, amount, then_hi, then_lo, since_hi, since_lo)
  local one = one_of(amount)
  if one > 33554432 then return since_hi, since_lo end
  local low = stamp % (8 * one)
  local cycle = 70368744177664 / one
  local ago = rest_of(now_hi, now_lo, cycle) - (stamp - low) / (8 * one) * 131072
  if ago < 0 then ago = ago + cycle end
  local tick_began = since_hi * 1e9 + since_lo + rest_of(then_hi, then_lo, 131072)
  if ago == tick_began and stamp == mark - mark % one and low / one < 7 then return 0, 0 end
  if ago > tick_began then return since_hi, since_lo end
  return plus(since_hi, since_lo, -math.max(ago - 131072 + 1, 0))
end

-- The mark is the instant of the charge, its stamp and its amount. What time has paid until the last
-- charge, it has paid of this one before all others: src/algorithm/gcra.rs says why.
local function refund(charge, mark_hi, mark_lo, mark_stamp, mark_amount)
  local raw, hi, lo, rest, stamp, written = recall(charge)
  if raw == '' then return end
  local amount = charge[2]
  local since_hi, since_lo = sub(now_hi, now_lo, 0, mark_hi, mark_lo, 0, 1)
  -- A clock that stepped back can't say what is paid.
  if since_hi < 0 then return end
  if written == mark_amount and is_near(hi, lo) then
    since_hi, since_lo = last_charge(stamp, mark_stamp, written, mark_hi, mark_lo, since_hi, since_lo)
  end
  -- What is given back changes no rate.
  if written ~= mark_amount or amount ~= mark_amount then return end
  local back_hi, back_lo, back_n = sub(charge[6], charge[7], charge[8], since_hi, since_lo, 0, amount)
  if back_hi < 0 then back_hi, back_lo, back_n = 0, 0, 0 end
  give_back(charge, hi, lo, rest, stamp, written, back_hi, back_lo, back_n)
end

-- Gives back the charge that left a mark, if it was the last: from a queue only the last can leave, as those
-- behind it have been told when they go on.
local function refund_last(charge, mark_hi, mark_lo, mark_rest, mark_amount)
  local raw, hi, lo, rest, stamp, written = recall(charge)
  if raw == '' or hi ~= mark_hi or lo ~= mark_lo then return end
  if is_near(hi, lo) then
    local one = one_of(written)
    if written ~= mark_amount or rest ~= mark_rest % one then return end
  elseif rest ~= mark_rest then
    return
  end
  give_back(charge, hi, lo, rest, stamp, written, charge[6], charge[7], charge[8])
end

drains = { known = known, owed = owed, adopt = adopt }
rules[100] = { numbers = '<dddddddddd', refund = refund }
rules[113] = { numbers = '<dddddddddd', refund = refund_last }
