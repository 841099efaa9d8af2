-- Token buckets that refill at intervals, as src/algorithm/interval_bucket.rs.
--
-- The second instant of a key's state is the first refill after its last charge. The counts are the tokens that are
-- missing until then, and the amount of the limit that was charged.

-- Returns the number of refills up to an instant, from the one at `first` on.
local function refills_since(first, from, span)
  if from < first then return 0 end
  local since = from - first
  return (since - since % span) / span + 1
end

-- Returns the present instant, the missing tokens, and the next refill.
local function view(now, amount, span, expires, first, charged)
  -- If the clock has stepped back behind the interval of the last charge, time stands still.
  local from = first - span > now and first - span or now
  local refills = refills_since(first, from, span)
  local missing = charged - refills * amount
  if missing <= 0 or expires <= from then return from, 0, from + span end
  return from, missing, first + refills * span
end

-- Returns whether the bucket has tokens for the cost, how many are missing, and the next refill.
local function peek(now, cost, hard, amount, span, expires, first, charged)
  local _, missing, refill = view(now, amount, span, expires, first, charged)
  return missing + cost <= hard, missing, refill
end

-- Returns the state of a bucket that lacks tokens until a refill.
local function state(missing, refill, amount, span)
  return refill + (math.ceil(missing / amount) - 1) * span, refill, missing, amount, 0
end

-- Returns the state after a charge of the bucket that `peek` has found.
local function charge(now, cost, hard, amount, span, missing, refill)
  return state(missing + cost, refill, amount, span)
end

if not is_refund then return peek, charge end

-- Takes a charge, less the refills since, off the tokens that were missing after the last one. The key keeps the amount
-- at which it was charged. The mark is the state that the refunded charge has left.
local function refund(now, cost, hard, amount, span, expires, first, charged, rate, marked, marked_first)
  local from, missing = view(now, amount, span, expires, first, charged)
  local back = cost - refills_since(marked_first, from, span) * amount
  if missing == 0 or back <= 0 or marked <= from then return end
  if missing <= back then return 0 end
  return state(charged - back, first, rate, span)
end

return peek, charge, refund
