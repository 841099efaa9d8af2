-- Buckets that drain continuously: token buckets and leaky buckets, and queues, as src/algorithm/bucket.rs.
--
-- A level is a number of tokens, and a part of a token in units of 1/span. The counts of a key's state are by how many
-- 1/amount of a µs its expiry was rounded up, and the amount.

-- Whole numbers below it are exact.
local MAX_EXACT = 9007199254740992

-- Returns whether the bucket has room for the cost, and the instant and the level that it finds.
local function peek(now, cost, hard, amount, span, expires, at, rounding, rate)
  -- If the clock has stepped back behind the last charge, time stands still.
  local from = at > now and at or now
  if expires <= from then return cost <= hard, from, 0, 0 end
  local units, tokens, part = (expires - from) * rate
  if rate == amount and units < MAX_EXACT then
    part = (units - rounding) % span
    tokens = (units - rounding - part) / span
  else
    local _, _, _, level = algorithm(tag, true)
    tokens, part = level(from, amount, span, expires, at, rounding, rate)
  end
  return tokens + cost + (part > 0 and 1 or 0) <= hard, from, tokens, part
end

-- Returns the state after a charge of the bucket that `peek` has found, and for how long it may be kept longer.
local function charge(_, cost, hard, amount, span, from, tokens, part)
  local units, micros, rounding = (tokens + cost) * span + part
  if units < MAX_EXACT then
    rounding = -units % amount
    micros = (units + rounding) / amount
  else
    local quotient, rest = mul_div(tokens + cost, span, amount)
    rounding = -(rest + part) % amount
    micros = quotient + (rest + part + rounding) / amount
  end
  return from + micros, from, rounding, amount, hard * span / amount / 16
end

if not is_refund then return peek, charge end

-- Returns a level with a part of at least 0 and less than a token. A negative one is 0.
local function normalize(tokens, part, span)
  if part < 0 then
    local borrowed = math.ceil(-part / span)
    tokens, part = tokens - borrowed, part + borrowed * span
  end
  if tokens < 0 then return 0, 0 end
  return tokens, part
end

-- Returns the level of a state at an instant.
local function level(from, amount, span, expires, at, rounding, rate)
  if expires <= from then return 0, 0 end
  if rate == amount then
    local tokens, part = mul_div(rate, expires - from, span)
    return normalize(tokens, part - rounding, span)
  end
  -- Charged at another rate, it drains at this one since.
  local tokens, part = mul_div(rate, expires - at, span)
  local less, less_part = mul_div(amount, from - at, span)
  return normalize(tokens - less, part - less_part - rounding, span)
end

-- Takes a charge off the level that the last one has left, but at most what is left of the level after the refunded
-- charge. A place in a queue is returned only if nobody is behind it: others have received their delays already. The
-- key keeps the rate at which it was charged. The mark is the state that the refunded charge has left.
--
-- Returns the state after the refund, or nothing if it changes nothing.
local function refund(now, cost, hard, amount, span, expires, at, rounding, rate, ...)
  local marked, marked_at, marked_rounding, marked_rate = ...
  local from = at > now and at or now
  local tokens, part = level(from, amount, span, expires, at, rounding, rate)
  local back, back_part = tokens, part
  if tag ~= ScriptTag.Queue then
    back, back_part = level(from, amount, span, marked, marked_at, marked_rounding, marked_rate)
  elseif expires ~= marked or rounding ~= marked_rounding or rate ~= marked_rate then
    return
  end
  if back >= cost then
    back, back_part = cost, 0
  end
  if back + back_part == 0 or tokens + part == 0 then return end
  if tokens < back or tokens == back and part <= back_part then return 0 end
  local charged, charged_part = level(at, amount, span, expires, at, rounding, rate)
  charged, charged_part = normalize(charged - back, charged_part - back_part, span)
  return charge(now, 0, hard, rate, span, at, charged, charged_part)
end

return peek, charge, refund, level
