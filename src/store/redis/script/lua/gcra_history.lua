-- The less frequent operations of GCRA: levels that another rate has written, refunds, and sizes of overrides. gcra.lua
-- describes the state of a key.

local load, now = ...
local keys = load('key')
local mul_div = load('arithmetic').mul_div
local ceil, floor, fmod, max = math.ceil, math.floor, math.fmod, math.max

local BUCKET_FORMAT, BUCKET_SIZE = '<I7I7I4I4I7', 29

-- Converts the time in which a level drains at one amount to the time at another one: µs, and n of `amount` equal parts
-- of a µs.
local function convert(span, from_amount, amount)
  local rest = fmod(span, amount)
  local converted, n = mul_div(from_amount, rest, amount)
  return converted + (span - rest) / amount * from_amount, n
end

-- Returns the level at `from` of a state, drained at the rate `amount` since the charge that has left it.
local function level(amount, from, expires, charged_at, rounding, held_amount)
  if expires <= from then return 0, 0 end
  local span, n = convert(expires - charged_at, held_amount, amount)
  span, n = span - (from - charged_at), n - rounding
  if n < 0 then
    local borrowed = ceil(-n / amount)
    span, n = span - borrowed, n + borrowed * amount
  end
  if span < 0 then return 0, 0 end
  return span, n
end

-- Takes a charge off the level that the last one has left, but at most what is left of the level after the refunded
-- charge. A place in a queue is returned only if nobody is behind it: others have received their delays already. The key
-- keeps the rate at which it was charged. The mark is the state that the refunded charge has left.
local function refund(charge, key, mark)
  local state = redis.call('GET', key)
  if not state then return end
  keys.check(key, state, BUCKET_SIZE)
  local expires, charged_at, rounding, held_amount = struct.unpack(BUCKET_FORMAT, state)
  local marked_expires, marked_at, marked_rounding, marked_amount = keys.decode(mark)
  local amount, from = charge.amount, max(now, charged_at)
  local span, n = level(amount, from, expires, charged_at, rounding, held_amount)
  if span == 0 and n == 0 then return end

  local back, back_n = charge.cost_span, charge.cost_n
  if charge.is_queue then
    if expires ~= marked_expires or rounding ~= marked_rounding or held_amount ~= marked_amount then return end
  else
    local left, left_n = level(amount, from, marked_expires, marked_at, marked_rounding, marked_amount)
    if left < back or left == back and left_n < back_n then back, back_n = left, left_n end
    if back == 0 and back_n == 0 then return end
  end
  if span < back or span == back and n <= back_n then return redis.call('DEL', key) end

  local held_back, rest = convert(back, amount, held_amount)
  rounding = rounding + back_n + rest
  local whole = floor(rounding / held_amount)
  expires, rounding = expires - held_back - whole, rounding - whole * held_amount
  if expires <= from then return redis.call('DEL', key) end
  keys.write(key, struct.pack(BUCKET_FORMAT, expires, charged_at, rounding, held_amount, expires), expires)
end

-- Gives a charge another capacity and rate: computes its arguments as script/args.rs does.
local function resize(charge, capacity, amount, interval)
  local cost = charge.cost
  charge.amount, charge.room, charge.room_n, charge.first_state = amount, -1, 0, false
  if cost <= capacity then charge.room, charge.room_n = mul_div(capacity - cost, interval, amount) end
  charge.cost_span, charge.cost_n = mul_div(cost, interval, amount)
  charge.slack = floor(mul_div(capacity, interval, amount) / 16)
end

return { level = level, refund = refund, resize = resize }
