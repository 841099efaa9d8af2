-- Logs (tag `l`): sliding logs and sliding windows, as src/algorithm/log.rs.
--
-- A key holds a list of entries, oldest first, one for each bucket in which something was charged. An entry is a state:
-- the start of the bucket, the total of all charges up to its end, modulo 2^32, and the total of those in it.

local load, now_hi, now_lo = ...
local keys = load('key')
local instant = load('instant')
local encode, decode = keys.encode, keys.decode
local call, floor, min, unpack = redis.call, math.floor, math.min, struct.unpack

local MODULUS = 4294967296

-- Reads the arguments of a charge from a request: cost, limit, the width of a bucket and the period in µs, and the
-- limit that is reported, which is lower if this one includes overage.
local function parse(text, at)
  local cost, limit, width, period, reported_limit, next_at = unpack('<ddddd', text, at)
  local charge = {
    cost = cost,
    limit = limit,
    width = width,
    period = period,
    reported_limit = reported_limit,
    -- The bucket that is charged.
    bucket_hi = 0,
    bucket_lo = 0,
    -- The number of entries that have expired, the first that has not, and the newest.
    expired = 0,
    oldest = false,
    newest = false,
    -- The running total before the oldest entry, and the total of the charges since.
    base = 0,
    used = 0,
  }
  return charge, next_at
end

-- Returns the entry at an index, or false past either end.
local function entry_at(key, index)
  local entry = call('LINDEX', key, index)
  if entry then keys.check(key, entry) end
  return entry
end

-- Returns the start of an entry's bucket, and its two counts. An entry may be of another width than the limit's.
local function open(entry, width)
  local hi, lo, total, charged = decode(entry)
  if width > 1 then hi, lo = instant.window_start(hi, lo, width) end
  return hi, lo, total, charged
end

-- Returns the index of the first entry after `low` that satisfies `condition`, and that entry. The entries up to `low`
-- do not satisfy it, and all after one that does satisfy it, too.
local function search(key, low, condition)
  local high, entry = low + 1
  local function is_at_or_past(index)
    entry = entry_at(key, index)
    return not entry or condition(entry)
  end
  while not is_at_or_past(high) do
    low, high = high, high + 2 * (high - low)
  end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if is_at_or_past(middle) then high = middle else low = middle end
  end
  return high, entry_at(key, high)
end

-- Reads a key: sets the bucket that is charged, the entries that count, and how much they have used.
local function view(charge, key)
  local width, period = charge.width, charge.period
  local hi, lo = instant.window_start(now_hi, now_lo, width)
  local newest = entry_at(key, -1)
  charge.bucket_hi, charge.bucket_lo = hi, lo
  charge.newest, charge.expired, charge.used = newest, 0, 0
  if not newest then return end

  local newest_hi, newest_lo, total = open(newest, width)
  -- A later bucket than the clock's, after the clock has stepped back: time stands still until that begins.
  if instant.difference(newest_hi, newest_lo, hi, lo) > 0 then hi, lo = newest_hi, newest_lo end
  charge.bucket_hi, charge.bucket_lo = hi, lo

  local function counts(entry)
    local entry_hi, entry_lo = open(entry, width)
    return instant.difference(hi, lo, entry_hi, entry_lo) < period
  end
  if not counts(newest) then return end
  local expired, oldest = 0, entry_at(key, 0)
  if not counts(oldest) then expired, oldest = search(key, 0, counts) end
  local _, _, oldest_total, oldest_charged = decode(oldest)
  charge.expired, charge.oldest, charge.base = expired, oldest, (oldest_total - oldest_charged) % MODULUS
  charge.used = (total - charge.base) % MODULUS
end

-- Returns the entry with whose expiry `tokens` are free again, if that is neither the oldest nor the next one.
local function entry_that_frees(charge, key, tokens)
  local base = charge.base
  local function frees(entry)
    local _, _, total = decode(entry)
    return (total - base) % MODULUS >= tokens
  end
  if frees(charge.oldest) then return '' end
  local _, entry = search(key, charge.expired, frees)
  return entry or ''
end

-- Returns whether there is room for a charge, and the entries that the rest of the decision depends on: the oldest and
-- the newest one, the one whose expiry raises the reported remaining tokens, and the one whose expiry leaves room for the
-- cost.
local function peek(charge, key)
  local cost, limit, reported_limit = charge.cost, charge.limit, charge.reported_limit
  view(charge, key)
  local used = charge.used
  if used == 0 then return cost <= limit, '' end
  local entries = charge.oldest
  local first, second = 0, 0
  if used > reported_limit then first = used - reported_limit + 1 end
  local has_room = used + cost <= limit
  if has_room then
    if used + cost > reported_limit then second = used + cost - reported_limit + 1 end
  elseif cost <= limit then
    second = used + cost - limit
  end
  if second < first then first, second = second, first end
  if first > 0 then entries = entries .. entry_that_frees(charge, key, first) end
  if second > first then entries = entries .. entry_that_frees(charge, key, second) end
  return has_room, entries .. charge.newest
end

-- Sets when a log expires whose newest bucket starts at (hi, lo).
local function expire(charge, key, hi, lo)
  local expires_hi, expires_lo = instant.add_span(hi, lo, charge.period)
  keys.expire(key, expires_hi, expires_lo)
end

-- Charges the bucket that `peek` has found, and drops the entries that have expired.
local function commit(charge, key)
  local hi, lo, cost = charge.bucket_hi, charge.bucket_lo, charge.cost
  if charge.used == 0 then
    if charge.newest then call('DEL', key) end
    call('RPUSH', key, encode(hi, lo, cost, cost))
  else
    if charge.expired > 0 then call('LTRIM', key, charge.expired, -1) end
    local newest_hi, newest_lo, total, charged = open(charge.newest, charge.width)
    total = (total + cost) % MODULUS
    if newest_hi == hi and newest_lo == lo then
      call('LSET', key, -1, encode(hi, lo, total, charged + cost))
    else
      call('RPUSH', key, encode(hi, lo, total, cost))
    end
  end
  expire(charge, key, hi, lo)
end

-- Refunds a charge. The mark is the start of its bucket.
local function refund(charge, key, mark_hi, mark_lo)
  view(charge, key)
  if charge.used == 0 then return end
  local function is_marked_or_later(entry)
    local hi, lo = open(entry, charge.width)
    return not instant.is_greater(mark_hi, mark_lo, 0, hi, lo, 0)
  end
  local index, marked = search(key, charge.expired - 1, is_marked_or_later)
  if not marked then return end
  local hi, lo, total, charged = open(marked, charge.width)
  if hi ~= mark_hi or lo ~= mark_lo then return end

  -- Rewrites all entries from the marked one on, because their running totals are lower now.
  local back = min(charged, charge.cost)
  local rewritten = call('LRANGE', key, index, -1)
  if index == 0 then call('DEL', key) else call('LTRIM', key, 0, index - 1) end
  for _, entry in ipairs(rewritten) do
    hi, lo, total, charged = decode(entry)
    if entry == marked then charged = charged - back end
    if charged > 0 then call('RPUSH', key, encode(hi, lo, (total - back) % MODULUS, charged)) end
  end
  local newest = entry_at(key, -1)
  if newest then
    hi, lo = decode(newest)
    expire(charge, key, hi, lo)
  end
end

return { parse = parse, peek = peek, commit = commit, refund = refund }
