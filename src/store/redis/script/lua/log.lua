-- Logs (tag `l`): sliding logs and sliding windows, as src/algorithm/log.rs.
--
-- A key holds a list of entries, oldest first, one for each bucket in which something was charged: the start of the
-- bucket, the total of all charges up to its end, modulo 2^32, and the total of those in it.

local load, now = ...
local keys = load('key')
local call, floor, fmod, max, min = redis.call, math.floor, math.fmod, math.max, math.min
local pack, unpack = struct.pack, struct.unpack

local ENTRY_FORMAT, ENTRY_SIZE = '<I7I4I4', 15
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
    bucket = 0,
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
  if entry then keys.check(key, entry, ENTRY_SIZE) end
  return entry
end

-- Returns the start of an entry's bucket, and its two counts. An entry may be of another width than the limit's.
local function open(entry, width)
  local start, total, charged = unpack(ENTRY_FORMAT, entry)
  return start - fmod(start, width), total, charged
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
  local bucket, newest = now - fmod(now, width), entry_at(key, -1)
  charge.bucket, charge.newest, charge.expired, charge.used = bucket, newest, 0, 0
  if not newest then return end

  local newest_bucket, total = open(newest, width)
  -- A later bucket than the clock's, after the clock has stepped back: time stands still until that begins.
  bucket = max(bucket, newest_bucket)
  charge.bucket = bucket

  local function counts(entry)
    return bucket - open(entry, width) < period
  end
  if not counts(newest) then return end
  local expired, oldest = 0, entry_at(key, 0)
  if not counts(oldest) then expired, oldest = search(key, 0, counts) end
  local _, oldest_total, oldest_charged = open(oldest, width)
  charge.expired, charge.oldest, charge.base = expired, oldest, (oldest_total - oldest_charged) % MODULUS
  charge.used = (total - charge.base) % MODULUS
end

-- Returns the entry with whose expiry `tokens` are free again, if that is neither the oldest nor the next one.
local function entry_that_frees(charge, key, tokens)
  local base = charge.base
  local function frees(entry)
    local _, total = open(entry, 1)
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

-- Charges the bucket that `peek` has found, and drops the entries that have expired.
local function commit(charge, key)
  local bucket, cost = charge.bucket, charge.cost
  if charge.used == 0 then
    if charge.newest then call('DEL', key) end
    call('RPUSH', key, pack(ENTRY_FORMAT, bucket, cost, cost))
  else
    if charge.expired > 0 then call('LTRIM', key, charge.expired, -1) end
    local newest, total, charged = open(charge.newest, charge.width)
    total = (total + cost) % MODULUS
    if newest == bucket then
      call('LSET', key, -1, pack(ENTRY_FORMAT, bucket, total, charged + cost))
    else
      call('RPUSH', key, pack(ENTRY_FORMAT, bucket, total, cost))
    end
  end
  keys.expire(key, bucket + charge.period)
end

-- Refunds a charge. Its bucket was the newest one: the first instant of the mark is a period after its start.
local function refund(charge, key, mark)
  view(charge, key)
  if charge.used == 0 then return end
  local bucket = keys.decode(mark) - charge.period
  local function is_marked_or_later(entry)
    return open(entry, charge.width) >= bucket
  end
  local index, marked = search(key, charge.expired - 1, is_marked_or_later)
  if not marked then return end
  local start, _, charged_in_it = open(marked, charge.width)
  if start ~= bucket then return end

  -- Rewrites all entries from the marked one on, because their running totals are lower now.
  local back = min(charged_in_it, charge.cost)
  local rewritten = call('LRANGE', key, index, -1)
  if index == 0 then call('DEL', key) else call('LTRIM', key, 0, index - 1) end
  for _, entry in ipairs(rewritten) do
    local at, total, charged = open(entry, 1)
    if entry == marked then charged = charged - back end
    if charged > 0 then call('RPUSH', key, pack(ENTRY_FORMAT, at, (total - back) % MODULUS, charged)) end
  end
  local newest = entry_at(key, -1)
  if newest then keys.expire(key, open(newest, 1) + charge.period) end
end

-- Gives a charge another limit, and another one to report.
local function resize(charge, limit, _, _, reported_limit)
  charge.limit, charge.reported_limit = limit, reported_limit
end

return { parse = parse, peek = peek, commit = commit, refund = refund, resize = resize }
