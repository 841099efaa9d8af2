-- The less frequent operations of GCRA: states of another rate, states without an amount, and refunds. gcra.lua
-- describes the state of a key.
--
-- The backlog is the span from the present instant to the TAT: (hi, lo, n), n of `amount` equal parts of a µs.

local load, now_hi, now_lo = ...
local keys = load('key')
local instant = load('instant')
local add_span, subtract, modulo, mul_div = instant.add_span, instant.subtract, instant.modulo, instant.mul_div
local ceil, floor, frexp, max, min = math.ceil, math.floor, math.frexp, math.max, math.min

local QUANTUM_INDEX_UNIT = 1099511627776
local TICK, CYCLE, MAX_TICK_UNIT = 131072, 70368744177664, 33554432
-- The longest backlog, 2^47 * 1e9 µs: src/algorithm/gcra.rs explains this bound.
local MAX_BACKLOG_HI = 140737488355328

-- Returns the unit of the bits above the rounding.
local function tick_unit_of(amount)
  local _, bits = frexp(amount)
  return 2 ^ bits
end

-- Returns the present tick with the highest count, as a first charge leaves it.
local function first_tick(amount)
  local unit = tick_unit_of(amount)
  if unit > MAX_TICK_UNIT then return 0 end
  return floor(modulo(now_hi, now_lo, CYCLE / unit) / TICK) * 8 * unit + 7 * unit
end

-- Returns whether an instant is under 2^63 µs, so that a state has room for an amount and a tick.
local function is_near(hi, lo)
  return hi < 9223372036 or hi == 9223372036 and lo < 854775808
end

-- Reads the parts of a state: returns the instant, its rounding, the tick of the last charge, and the amount of the
-- limit that has written it. If it has none, that is `amount`.
local function open(amount, hi, lo, detail, held_amount)
  if held_amount > 0 then hi = hi % QUANTUM_INDEX_UNIT end
  local near = is_near(hi, lo)
  if near and held_amount > 0 then
    local rounding = detail % tick_unit_of(held_amount)
    return hi, lo, rounding, detail - rounding, held_amount
  end
  local rounding = near and min(detail, amount - 1) or detail
  local unit = tick_unit_of(amount)
  return hi, lo, rounding, unit <= MAX_TICK_UNIT and 7 * unit or 0, amount
end

-- Converts a backlog of the rate `from` to the rate `to`: as many tokens, so it is multiplied by one and divided by the
-- other, in digits of 1e9.
local function convert(hi, lo, n, from, to)
  local carry, low = mul_div(from, lo, 1e9)
  local top, high = mul_div(from, hi, 1e9)
  low = low + n
  local more = floor(low / 1e9)
  high, low = high + carry + more, low - more * 1e9
  more = floor(high / 1e9)
  top, high = top + more, high - more * 1e9
  local whole = floor(top / to)
  local rest = top - whole * to
  local function divide_digit(digit)
    local quotient, left = mul_div(rest, 1e9, to)
    local sum = left + digit
    local extra = floor(sum / to)
    rest = sum - extra * to
    return quotient + extra
  end
  high = divide_digit(high)
  low = divide_digit(low)
  hi = whole * 1e9 + high
  if hi >= MAX_BACKLOG_HI then return MAX_BACKLOG_HI, 0, 0 end
  return hi, low, rest
end

-- Returns the backlog, at the rate `amount`, of a TAT that the rate `held_amount` has written.
local function backlog(amount, hi, lo, rounding, held_amount)
  local n = 0
  if rounding > 0 then
    local whole = ceil(rounding / held_amount)
    hi, lo = add_span(hi, lo, -whole)
    n = whole * held_amount - rounding
  end
  hi, lo, n = subtract(hi, lo, n, now_hi, now_lo, 0, held_amount)
  if hi < 0 then return 0, 0, 0 end
  if held_amount ~= amount then return convert(hi, lo, n, held_amount, amount) end
  return hi, lo, n
end

-- Reads the parts of a state of any rate: returns the TAT at the rate `amount`, the tick of the last charge if it is
-- known, and whether the state is of another rate.
local function tat_at_rate(amount, hi, lo, detail, held_amount)
  local rounding, last_charge
  hi, lo, rounding, last_charge, held_amount = open(amount, hi, lo, detail, held_amount)
  local n
  hi, lo, n = backlog(amount, hi, lo, rounding, held_amount)
  hi, lo = add_span(hi + now_hi, lo, now_lo)
  local has_other_rate = held_amount ~= amount
  return hi, lo, n, not has_other_rate and last_charge, has_other_rate
end

-- Writes a backlog, which may have a lo of more than 1e9.
local function store(key, amount, hi, lo, n, last_charge)
  local rounding = 0
  if n > 0 then lo, rounding = lo + 1, amount - n end
  hi, lo = add_span(hi + now_hi, lo, now_lo)
  if not is_near(hi, lo) then last_charge, amount = 0, 0 end
  keys.write(key, keys.encode(hi, lo, last_charge + rounding, amount), hi, lo)
end

-- Writes a TAT that was converted to the rate `amount`.
local function store_converted(key, hi, lo, n, amount)
  hi, lo, n = subtract(hi, lo, n, now_hi, now_lo, 0, amount)
  store(key, amount, hi, lo, n, first_tick(amount))
end

-- Returns the longest time after a charge at (then_hi, then_lo), which was (since_hi, since_lo) ago and left `mark_tick`,
-- in which the last charge of the key can have been.
local function until_last_charge(last_charge, mark_tick, amount, then_hi, then_lo, since_hi, since_lo)
  local unit = tick_unit_of(amount)
  if unit > MAX_TICK_UNIT then return since_hi, since_lo end
  local count = last_charge % (8 * unit)
  local cycle = CYCLE / unit
  local ago = modulo(now_hi, now_lo, cycle) - (last_charge - count) / (8 * unit) * TICK
  if ago < 0 then ago = ago + cycle end
  local tick_began = since_hi * 1e9 + since_lo + modulo(then_hi, then_lo, TICK)
  if ago == tick_began and last_charge == mark_tick - mark_tick % unit and count / unit < 7 then return 0, 0 end
  if ago > tick_began then return since_hi, since_lo end
  return add_span(since_hi, since_lo, -max(ago - TICK + 1, 0))
end

-- Takes (back_hi, back_lo, back_n) off the backlog of a key that holds a TAT of the rate `held_amount`.
local function reduce(key, amount, hi, lo, rounding, last_charge, held_amount, back_hi, back_lo, back_n)
  local n
  hi, lo, n = backlog(amount, hi, lo, rounding, held_amount)
  if held_amount ~= amount then last_charge = first_tick(amount) end
  if not instant.is_greater(hi, lo, n, back_hi, back_lo, back_n) then return redis.call('DEL', key) end
  hi, lo, n = subtract(hi, lo, n, back_hi, back_lo, back_n, amount)
  store(key, amount, hi, lo, n, last_charge)
end

-- Refunds the part of a charge that has not drained. The mark is the instant of the charge, its tick, and the amount.
-- src/algorithm/gcra.rs explains why all units that drained until the last charge count as units of this one.
local function refund_bucket(charge, key, mark_hi, mark_lo, mark_tick, mark_amount)
  local state, hi, lo, detail, held_amount = keys.read(key)
  if state == '' then return end
  local rounding, last_charge
  local amount = charge.amount
  hi, lo, rounding, last_charge, held_amount = open(amount, hi, lo, detail, held_amount)
  -- After another rate, or after the clock has stepped back, the drained units are unknown.
  if held_amount ~= mark_amount or amount ~= mark_amount then return end
  local since_hi, since_lo = subtract(now_hi, now_lo, 0, mark_hi, mark_lo, 0, 1)
  if since_hi < 0 then return end
  if is_near(hi, lo) then
    since_hi, since_lo = until_last_charge(last_charge, mark_tick, amount, mark_hi, mark_lo, since_hi, since_lo)
  end
  local back_hi, back_lo, back_n = subtract(charge.cost_hi, charge.cost_lo, charge.cost_n, since_hi, since_lo, 0, amount)
  if back_hi < 0 then back_hi, back_lo, back_n = 0, 0, 0 end
  reduce(key, amount, hi, lo, rounding, last_charge, amount, back_hi, back_lo, back_n)
end

-- Refunds the last charge of a queue, which is the one whose mark is the state of the key. Requests behind an earlier one
-- have received their delays already.
local function refund_queue(charge, key, mark_hi, mark_lo, mark_rounding, mark_amount)
  local state, hi, lo, detail, held_amount = keys.read(key)
  local amount = charge.amount
  local rounding, last_charge
  hi, lo, rounding, last_charge, held_amount = open(amount, hi, lo, detail, held_amount)
  if state == '' or hi ~= mark_hi or lo ~= mark_lo then return end
  if is_near(hi, lo) then
    if held_amount ~= mark_amount then return end
    mark_rounding = mark_rounding % tick_unit_of(held_amount)
  end
  if rounding ~= mark_rounding then return end
  reduce(key, amount, hi, lo, rounding, last_charge, held_amount, charge.cost_hi, charge.cost_lo, charge.cost_n)
end

-- Refunds the charge with this mark, as far as it still counts.
local function refund(charge, ...)
  if charge.is_queue then return refund_queue(charge, ...) end
  refund_bucket(charge, ...)
end

return { tat_at_rate = tat_at_rate, store_converted = store_converted, refund = refund }
