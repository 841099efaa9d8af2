-- Token buckets that refill at intervals (tag `i`), as src/algorithm/interval_bucket.rs.
--
-- A key holds an instant at which an interval ends, how many tokens are missing until then, and the amount that each
-- interval brings (0 in states of a version that stored none: it is the limit's own).

local load, now_hi, now_lo = ...
local keys = load('key')
local instant = load('instant')
local add_span, subtract, modulo = instant.add_span, instant.subtract, instant.modulo
local ceil, floor, max, unpack = math.ceil, math.floor, math.max, struct.unpack

-- Reads the arguments of a charge from a request: cost, capacity, amount, and interval in µs.
local function parse(text, at)
  local cost, capacity, amount, interval, next_at = unpack('<dddd', text, at)
  local charge = {
    cost = cost,
    capacity = capacity,
    amount = amount,
    interval = interval,
    missing = 0,
    until_refill = 0,
    expires_hi = false,
    expires_lo = 0,
    has_other_rate = false,
  }
  return charge, next_at
end

-- Returns how many whole intervals there are in a span, and the rest of it.
local function intervals_in(span_hi, span_lo, interval)
  local rest = modulo(span_hi, span_lo, interval)
  -- Exact where it matters: a bucket fills in at most 2^32 intervals.
  return floor((span_hi * 1e9 + span_lo - rest) / interval + 0.5), rest
end

-- Returns how many tokens are missing now of `count` that are missing before (hi, lo), and how long it is until the
-- next refill.
local function missing_now(charge, hi, lo, count, amount)
  local interval = charge.interval
  if count == 0 then return 0, interval end
  local refills, rest
  local left_hi, left_lo = subtract(hi, lo, 0, now_hi, now_lo, 0, 1)
  if left_hi < 0 or left_hi + left_lo == 0 then
    local since_hi, since_lo = subtract(now_hi, now_lo, 0, hi, lo, 0, 1)
    refills, rest = intervals_in(since_hi, since_lo, interval)
    refills, rest = refills + 1, interval - rest
  else
    refills, rest = intervals_in(left_hi, left_lo, interval)
    refills = -refills
    if rest == 0 then rest, refills = interval, refills + 1 end
  end
  if ceil(count / amount) <= refills then return 0, interval end
  count = count - refills * amount
  -- Of a bucket of another rate, more might never come back.
  if amount ~= charge.amount and count > 4294967295 then count = 4294967295 end
  return count, rest
end

-- Returns the first instant at which none of `count` tokens is missing that are missing before (hi, lo).
local function full_at(hi, lo, count, amount, interval)
  return add_span(hi, lo, (ceil(count / amount) - 1) * interval)
end

-- Reads a key, whose amount is the limit's own unless it holds one.
local function read(charge, key)
  local state, hi, lo, count, amount = keys.read(key)
  if amount == 0 then amount = charge.amount end
  return state, hi, lo, count, amount
end

-- Writes that `count` tokens are missing before (hi, lo). The key's expiry is known if `peek` has set it.
local function store(charge, key, hi, lo, count)
  local amount = charge.amount
  local expires_hi, expires_lo = full_at(hi, lo, count, amount, charge.interval)
  local state = keys.encode(hi, lo, count, amount)
  if not charge.expires_hi then return keys.write(key, state, expires_hi, expires_lo) end
  keys.overwrite(key, '0', state)
  if expires_hi ~= charge.expires_hi or expires_lo ~= charge.expires_lo then keys.expire(key, expires_hi, expires_lo) end
end

-- Returns whether the bucket has tokens for a charge, and the key's state.
local function peek(charge, key)
  local state, hi, lo, count, amount = read(charge, key)
  charge.has_other_rate, charge.expires_hi = amount ~= charge.amount, false
  if state ~= '' and not charge.has_other_rate then
    charge.expires_hi, charge.expires_lo = full_at(hi, lo, count, amount, charge.interval)
  end
  charge.missing, charge.until_refill = missing_now(charge, hi, lo, count, amount)
  return charge.missing + charge.cost <= charge.capacity, state
end

-- Charges the bucket that `peek` has found.
local function commit(charge, key)
  local hi, lo = add_span(now_hi, now_lo, charge.until_refill)
  store(charge, key, hi, lo, charge.missing + charge.cost)
end

-- Converts the tokens that `peek` has found missing at another rate: they come back at the limit's own rate from now on.
local function convert_rate(charge, key)
  if not charge.has_other_rate or charge.missing == 0 then return end
  local hi, lo = add_span(now_hi, now_lo, charge.until_refill)
  store(charge, key, hi, lo, charge.missing)
end

-- Refunds a charge, less the refills since. The mark is the first refill after the charge. interval_bucket.rs explains
-- why the refills count as refills of this charge.
local function refund(charge, key, mark_hi, mark_lo, _, mark_amount)
  local state, hi, lo, count, stored_amount = read(charge, key)
  if state == '' then return end
  local amount, interval = charge.amount, charge.interval
  local refills = 0
  local since_hi, since_lo = subtract(now_hi, now_lo, 0, mark_hi, mark_lo, 0, 1)
  if since_hi >= 0 then
    refills = intervals_in(since_hi, since_lo, interval) + 1
  elseif instant.difference(mark_hi, mark_lo, now_hi, now_lo) > interval then
    -- The clock has stepped back: it is unknown how many refills there were.
    return
  end
  -- Nor is it known how many tokens each brought, if the rate has changed.
  if mark_amount ~= amount or stored_amount ~= amount then return end
  local back = max(charge.cost - refills * amount, 0)
  if missing_now(charge, hi, lo, count, amount) <= back then return redis.call('DEL', key) end
  count = count - back
  if count <= 0 then
    -- Full before that interval ends: the missing tokens are counted up to the end of an earlier one.
    local intervals = floor(-count / amount) + 1
    count = count + intervals * amount
    local span_hi, span_lo = instant.mul_div(intervals, interval, 1e9)
    hi, lo = subtract(hi, lo, 0, span_hi, span_lo, 0, 1)
  end
  charge.expires_hi = false
  store(charge, key, hi, lo, count)
end

return { parse = parse, peek = peek, commit = commit, convert_rate = convert_rate, refund = refund }
