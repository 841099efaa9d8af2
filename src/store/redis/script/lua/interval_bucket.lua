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
    -- The present instant, the missing tokens, the next refill, when the key expires, and the amount that it holds.
    from = 0,
    missing = 0,
    refill = 0,
    expires = 0,
    held_amount = 0,
  }
  return charge, next_at
end

-- Returns the number of refills up to `instant`, from the one at `first` on.
local function refills_since(first, instant, interval)
  if instant < first then return 0 end
  local since = instant - first
  return (since - fmod(since, interval)) / interval + 1
end

-- Reads a key: sets how many tokens are missing now, and the next refill. Returns the key's state.
local function view(charge, key)
  local state, expires, refill, missing, held_amount = keys.read(key)
  local interval = charge.interval
  -- If the clock has stepped back behind the interval of the last charge, time stands still.
  local from = max(now, refill - interval)
  local refills = refills_since(refill, from, interval)
  missing, refill = missing - refills * charge.amount, refill + refills * interval
  if missing <= 0 or expires <= from then missing, refill = 0, from + interval end
  charge.from, charge.missing, charge.refill = from, missing, refill
  charge.expires, charge.held_amount = expires, held_amount
  return state
end

-- Writes that `missing` tokens are missing before the next refill, of a limit of this amount.
local function store(charge, key, missing, amount)
  local expires = charge.refill + (ceil(missing / amount) - 1) * charge.interval
  local state = keys.encode(expires, charge.refill, missing, amount)
  if expires == charge.expires then return keys.overwrite(key, state) end
  keys.write(key, state, expires)
end

-- Returns whether the bucket has tokens for a charge, and the key's state.
local function peek(charge, key)
  local state = view(charge, key)
  return charge.missing + charge.cost <= charge.capacity, state
end

-- Charges the bucket that `peek` has found.
local function commit(charge, key)
  store(charge, key, charge.missing + charge.cost, charge.amount)
end

-- Refunds a charge, less the refills since. The key keeps the amount at which it was charged. The mark is the state that the charge has left.
local function refund(charge, key, mark)
  view(charge, key)
  local amount, interval = charge.amount, charge.interval
  local marked_expires, first = keys.decode(mark)
  local back = charge.cost - refills_since(first, charge.from, interval) * amount
  if charge.missing == 0 or back <= 0 or marked_expires <= charge.from then return end
  if charge.missing <= back then return redis.call('DEL', key) end
  store(charge, key, charge.missing - back, charge.held_amount)
end

return { parse = parse, peek = peek, commit = commit, refund = refund }
