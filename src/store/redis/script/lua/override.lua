-- Overrides: the size that a limit has for one key.
--
-- A key holds the instant at which the override expires, or 0 if it never does, and the two numbers of its size: the
-- tokens of a window, or the capacity and the amount of a bucket.

local load, now = ...
local keys = load('key')
local mul_div = load('arithmetic').mul_div
local floor, max, min, unpack = math.floor, math.max, math.min, struct.unpack

local QUEUE, MAX_TOKENS = 113, 4294967295 -- q

-- Reads the arguments of a limit that can be overridden: its own size, its overage in percent, and its span in µs.
local function parse(text, at, tag)
  local tokens, amount, percent, span, next_at = unpack('<dddd', text, at)
  local own = {
    tag = tag,
    tokens = tokens,
    amount = amount,
    percent = percent,
    span = span,
    -- The size of the charge's arguments.
    charge_tokens = tokens,
    charge_amount = amount,
  }
  return own, next_at
end

-- Returns the override that a key holds: an empty string if there is none, or if it has expired, and its size.
local function current(key)
  local state, expires, _, tokens, amount = keys.read(key)
  if expires > 0 and expires <= now then return '' end
  return state, tokens, amount
end

-- Returns the overage of a limit with a capacity, as `Algorithm::with_overage`: a bucket drains within 2^52 µs.
local function overage(own, tokens, amount, capacity)
  local most = min(floor(tokens * own.percent / 100), MAX_TOKENS - tokens)
  if amount > 0 and amount * 1048576 < own.span then
    local drained, rest = mul_div(67108864, amount, own.span)
    drained = drained * 67108864 + mul_div(67108864, rest, own.span)
    most = min(most, max(drained - capacity, 0))
  end
  return most
end

-- Gives a charge the size of the key's override, or the limit's own. Returns the override.
local function apply(own, charge, key)
  local state, tokens, amount = current(key)
  if state == '' then
    tokens, amount = own.tokens, own.amount
  end
  if tokens ~= own.charge_tokens or amount ~= own.charge_amount then
    own.charge_tokens, own.charge_amount = tokens, amount
    local capacity = tokens
    if own.tag == QUEUE then capacity = tokens + 1 end
    local limit = capacity + overage(own, tokens, amount, capacity)
    load(string.char(own.tag)).resize(charge, limit, amount, own.span, capacity)
  end
  return state
end

-- Sets the override of a key as a request says: for a span in µs, or for good if that is negative; and its size.
local function set(key, text, at)
  local span, first, second = unpack('<dI4I4', text, at)
  if span < 0 then return redis.call('SET', key, keys.encode(0, 0, first, second)) end
  local expires = now + span
  keys.write(key, keys.encode(expires, 0, first, second), expires)
end

return { parse = parse, current = current, apply = apply, set = set }
