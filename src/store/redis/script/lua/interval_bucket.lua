-- Token buckets that refill at intervals (tag `i`), as src/algorithm/interval_bucket.rs.
--
-- The second instant of a key's state is the first refill after its last charge. The counts are the tokens that are
-- missing until then, and the amount of the limit that was charged.

local load, now = ...
local keys = load('key')
local ceil, fmod, max, unpack = math.ceil, math.fmod, math.max, struct.unpack

-- Reads the arguments of a charge from a request: cost, capacity, amount, and interval in µs.
local function parse(text, at)
  local cost, capacity, amount, interval, next_at = unpack('<dddd', text, at)
  local charge = {
    cost = cost,
    capacity = capacity,
    amount = amount,
    interval = interval,
    -- The present instant, the missing tokens, the next refill, and when the key expires.
    from = 0,
    missing = 0,
    refill = 0,
    expires = 0,
  }
  return charge, next_at
end

-- Returns the number of refills up to `instant`, from the one at `first` on.
local function refills_since(first, instant, interval)
  if instant < first then return 0 end
  local since = instant - first
  return (since - fmod(since, interval)) / interval + 1
end

-- Reads a key: sets how many tokens are missing now, and the next refill. Returns the key's state, the tokens that were
-- missing after its last charge, the first refill since, and the amount of the limit that was charged.
local function view(charge, key)
  local state, expires, first, charged, held_amount = keys.read(key)
  local interval = charge.interval
  -- If the clock has stepped back behind the interval of the last charge, time stands still.
  local from = max(now, first - interval)
  local refills = refills_since(first, from, interval)
  local missing, refill = charged - refills * charge.amount, first + refills * interval
  if missing <= 0 or expires <= from then missing, refill = 0, from + interval end
  charge.from, charge.missing, charge.refill, charge.expires = from, missing, refill, expires
  return state, charged, first, held_amount
end

-- Returns when a bucket is full that lacks `missing` tokens until the refill at `refill`.
local function full_at(missing, refill, amount, interval)
  return refill + (ceil(missing / amount) - 1) * interval
end

-- Returns whether the bucket has tokens for a charge, and the key's state.
local function peek(charge, key)
  local state = view(charge, key)
  return charge.missing + charge.cost <= charge.capacity, state
end

-- Charges the bucket that `peek` has found.
local function commit(charge, key)
  local missing, refill, amount = charge.missing + charge.cost, charge.refill, charge.amount
  local expires = full_at(missing, refill, amount, charge.interval)
  local state = keys.encode(expires, refill, missing, amount)
  if expires == charge.expires then return keys.overwrite(key, state) end
  keys.write(key, state, expires)
end

-- Takes a charge, less the refills since, off the tokens that were missing after the last one. The key keeps the amount
-- at which it was charged. The mark is the state that the refunded charge has left.
local function refund(charge, key, mark)
  local _, charged, first, held_amount = view(charge, key)
  local interval = charge.interval
  local marked_expires, marked_first = keys.decode(mark)
  local back = charge.cost - refills_since(marked_first, charge.from, interval) * charge.amount
  if charge.missing == 0 or back <= 0 or marked_expires <= charge.from then return end
  if charge.missing <= back then return redis.call('DEL', key) end
  local expires = full_at(charged - back, first, held_amount, interval)
  if expires <= charge.from then return redis.call('DEL', key) end
  keys.write(key, keys.encode(expires, first, charged - back, held_amount), expires)
end

-- Gives a charge another capacity and amount.
local function resize(charge, capacity, amount)
  charge.capacity, charge.amount = capacity, amount
end

return { parse = parse, peek = peek, commit = commit, refund = refund, resize = resize }
