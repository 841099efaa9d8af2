-- Buckets from which blocks are leased, as src/algorithm/leased_bucket.rs.
--
-- The state of a key is that of a busy period: when its tokens have drained, and when it began. The counts are the tokens
-- that were refunded in it, and the amount that drains per span.

local LONGEST_PERIOD, MAX_REFUNDED = 268435456, 4294967295

-- Returns how many tokens drain in a time, rounded down or up.
local function drained(micros, rate, span, rounds_up)
  if micros <= 0 then return 0 end
  local tokens, rest = mul_div(rate, micros, span)
  return rounds_up and rest > 0 and tokens + 1 or tokens
end

-- Returns the state of a period with these tokens.
local function state(began, tokens, refunded, rate, hard, span)
  local micros, rest = mul_div(tokens, span, rate)
  if rest > 0 then micros = micros + 1 end
  return began + micros, began, refunded, rate, hard * span / rate / 16
end

-- Returns whether the bucket has room for the cost, and the period that a charge continues: its beginning, its tokens, and
-- those that were refunded.
local function peek(now, cost, hard, amount, span, expires, at, refunded, rate)
  if expires <= now then return cost <= hard, now, 0, 0 end
  local tokens, from = drained(expires - at, rate, span), at > now and at or now
  local used = math.max(tokens - drained(now - at, rate, span), 0)
  local has_room = used + cost <= hard
  if used == 0 then return has_room, now, 0, 0 end
  if rate ~= amount or from - at >= LONGEST_PERIOD then return has_room, from, used, 0 end
  return has_room, at, tokens, refunded
end

-- Returns the state after a charge of the period that `peek` has found.
local function charge(now, cost, hard, amount, span, began, tokens, refunded)
  return state(began, tokens + cost, refunded, amount, hard, span)
end

if not is_refund then return peek, charge end

-- Refunds at most what is left of the level after the refunded charge, less what was refunded since. The mark is the state
-- that the charge has left.
local function refund(now, cost, hard, amount, span, expires, at, refunded, rate, ...)
  local marked, marked_at, marked_refunded, marked_rate = ...
  if at ~= marked_at or rate ~= marked_rate or expires <= now then return end
  local left = math.max(drained(marked - at, rate, span) - drained(now - at, rate, span, true), 0)
  local back = math.min(cost, left - math.max(refunded - marked_refunded, 0))
  if back <= 0 or refunded + back > MAX_REFUNDED then return end
  local tokens = math.max(drained(expires - at, rate, span) - back, 0)
  local refunded_state = { state(at, tokens, refunded + back, rate, hard, span) }
  if refunded_state[1] <= now then return 0 end
  return unpack(refunded_state)
end

return peek, charge, refund
