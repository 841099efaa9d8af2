-- Sliding logs and sliding windows, as src/algorithm/log.rs.
--
-- A key holds a list of entries, oldest first, one for each bucket in which something was charged: the start of the
-- bucket, the total of all charges up to its end, modulo 2^32, and the total of those in it.

-- Unlike other algorithms, this one reads and writes its keys: it needs few of the entries.

local call, floor, fmod, pack, unpack = redis.call, math.floor, math.fmod, struct.pack, struct.unpack
local ENTRY, MODULUS = '<I7I4I4', 4294967296
-- The findings of `view`: the bucket that is charged; the number of entries that have expired, the oldest that has not,
-- and the newest; the running total before the oldest, and the total of the charges since.
local now, cost, capacity, hard, span, width, bucket, expired, oldest, newest, base, used

-- Returns the entry at an index, or false past either end.
local function entry_at(key, index)
  local entry = call('LINDEX', key, index)
  if entry and #entry ~= 15 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
  return entry
end

-- Sets that a key expires a span after the start of its newest bucket.
local function expire(key, start, margin)
  call('PEXPIREAT', key, string.format('%d', math.ceil((start + span) / 1000) + margin))
end

-- Returns the start of an entry's bucket, and its two counts. An entry may be of another width than the limit's.
local function open(entry)
  local start, total, charged = unpack(ENTRY, entry)
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

-- Reads a key.
local function view(key)
  bucket, expired, used, newest = now - fmod(now, width), 0, 0, entry_at(key, -1)
  if not newest then return end
  local newest_bucket, total = open(newest)
  -- A later bucket than the clock's, after the clock has stepped back: time stands still until that begins.
  if newest_bucket > bucket then bucket = newest_bucket end

  local function counts(entry)
    return bucket - open(entry) < span
  end
  if not counts(newest) then return end
  oldest = entry_at(key, 0)
  if not counts(oldest) then
    expired, oldest = search(key, 0, counts)
  end
  local _, oldest_total, oldest_charged = open(oldest)
  base = (oldest_total - oldest_charged) % MODULUS
  used = (total - base) % MODULUS
end

-- Returns the entry with whose expiry `tokens` are free again, if that is neither the oldest nor the next one.
local function entry_that_frees(key, tokens)
  local function frees(entry)
    local _, total = open(entry)
    return (total - base) % MODULUS >= tokens
  end
  if frees(oldest) then return '' end
  local _, entry = search(key, expired, frees)
  return entry or ''
end

-- Returns whether there is room for the cost, and the entries that the rest of the decision depends on: the oldest and
-- the newest one, the one whose expiry raises the reported remaining tokens, and the one whose expiry leaves room for
-- the cost.
local function peek(key, ...)
  now, cost, capacity, hard, span, width = ...
  view(key)
  local has_room = used + cost <= hard
  if used == 0 then return has_room, '' end
  local entries, first, second = oldest, 0, 0
  if used > capacity then first = used - capacity + 1 end
  if has_room then
    if used + cost > capacity then second = used + cost - capacity + 1 end
  elseif cost <= hard then
    second = used + cost - hard
  end
  if second < first then
    first, second = second, first
  end
  if first > 0 then entries = entries .. entry_that_frees(key, first) end
  if second > first then entries = entries .. entry_that_frees(key, second) end
  return has_room, entries .. newest
end

-- Charges the bucket that `peek` has found, and drops the entries that have expired.
local function charge(key, margin)
  if used == 0 then
    if newest then call('DEL', key) end
    call('RPUSH', key, pack(ENTRY, bucket, cost, cost))
  else
    if expired > 0 then call('LTRIM', key, expired, -1) end
    local newest_bucket, total, charged = open(newest)
    total = (total + cost) % MODULUS
    if newest_bucket == bucket then
      call('LSET', key, -1, pack(ENTRY, bucket, total, charged + cost))
    else
      call('RPUSH', key, pack(ENTRY, bucket, total, cost))
    end
  end
  expire(key, bucket, margin)
end

-- Refunds a charge of the key that `peek` has read. Its bucket was the newest one: the first instant of the mark is a
-- span after its start.
local function refund(key, marked_expiry, margin)
  if used == 0 then return end
  local marked_bucket = marked_expiry - span
  local index, marked = search(key, expired - 1, function(entry) return open(entry) >= marked_bucket end)
  if not marked then return end
  local start, _, charged_in_it = open(marked)
  if start ~= marked_bucket then return end

  -- Rewrites all entries from the marked one on, because their running totals are lower now.
  local back = math.min(charged_in_it, cost)
  local rewritten = call('LRANGE', key, index, -1)
  if index == 0 then call('DEL', key) else call('LTRIM', key, 0, index - 1) end
  for _, entry in ipairs(rewritten) do
    local at, total, charged = unpack(ENTRY, entry)
    if entry == marked then charged = charged - back end
    if charged > 0 then call('RPUSH', key, pack(ENTRY, at, (total - back) % MODULUS, charged)) end
  end
  newest = entry_at(key, -1)
  if newest then expire(key, unpack('<I7', newest), margin) end
end

return peek, charge, refund
