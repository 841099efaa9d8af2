-- The twin of src/algorithm/log.rs. A key holds a list, oldest first: for each bucket in which something was
-- taken, its start, all that was ever taken up to and in it, modulo 2^32, and what was taken in it.
rule = { numbers = '<ddddd', peek = false, commit = false, refund = false }

-- The entry at an index. None is past either end.
local function entry(key, index)
  local raw = call('LINDEX', key, index)
  if raw and #raw ~= 18 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
  return raw
end

-- The start of an entry's bucket, if need be of another width than it was written for, and its
-- two counts.
local function open(raw, width)
  local hi, lo, total, taken = unpack_from('<I6I4I4I4', raw)
  if width > 1 then hi, lo = plus(hi, lo, -rest_of(hi, lo, width)) end
  return hi, lo, total, taken
end

-- The first entry after `low` that passes, where those up to one don't, `low` is one of them, and
-- all after it do.
local function seek(key, low, passes)
  local high, raw = low + 1
  local function at(index)
    raw = entry(key, index)
    return not raw or passes(raw)
  end
  while not at(high) do
    low, high = high, high + 2 * (high - low)
  end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if at(middle) then high = middle else low = middle end
  end
  return high, entry(key, high)
end

-- Sees what counts now: the bucket that counts as the present one, the first and the newest entry
-- that count, and what is used.
local function view(charge)
  local key, width, period = charge.key, charge[3], charge[4]
  local hi, lo = window_start(width)
  local newest = entry(key, -1)
  charge.hi, charge.lo = hi, lo
  charge.newest, charge.past, charge.used = newest, 0, 0
  if not newest then return end

  local newest_hi, newest_lo, total = open(newest, width)
  -- A newer entry than the clock's bucket was left before the clock stepped back: time stands still
  -- until then.
  if apart(newest_hi, newest_lo, hi, lo) > 0 then hi, lo = newest_hi, newest_lo end
  charge.hi, charge.lo = hi, lo

  local function counts(raw)
    local entry_hi, entry_lo = open(raw, width)
    return apart(hi, lo, entry_hi, entry_lo) < period
  end
  if not counts(newest) then return end
  local first, raw = 0, entry(key, 0)
  if not counts(raw) then first, raw = seek(key, 0, counts) end
  local _, _, upto, taken = unpack_from('<I6I4I4I4', raw)
  charge.past, charge.base, charge.oldest = first, (upto - taken) % 4294967296, raw
  charge.used = (total - charge.base) % 4294967296
end

-- The entry with which `tokens` of those that count no longer do.
local function freed(charge, tokens)
  local base = charge.base
  local function frees(raw)
    local _, _, total = unpack_from('<I6I4I4I4', raw)
    return (total - base) % 4294967296 >= tokens
  end
  if frees(charge.oldest) then return '' end
  local _, raw = seek(charge.key, charge.past, frees)
  -- None of those that are there: the one that is about to be.
  return raw or ''
end

-- Of all that counts, only what the answer needs is told: the oldest entry, those with which more
-- is free of the limit without its overage, before or after this, or enough for this, and the newest.
function rule.peek(charge)
  local cost, limit, told = charge[1], charge[2], charge[5]
  view(charge)
  local used = charge.used
  if used == 0 then return cost <= limit, '' end
  local held = charge.oldest
  local more, enough = 0, 0
  if used > told then more = used - told + 1 end
  local room = used + cost <= limit
  if room then
    if used + cost > told then enough = used + cost - told + 1 end
  elseif cost <= limit then
    enough = used + cost - limit
  end
  if enough < more then more, enough = enough, more end
  if more > 0 then held = held .. freed(charge, more) end
  if enough > more then held = held .. freed(charge, enough) end
  return room, held .. charge.newest
end

function rule.commit(charge)
  local key, hi, lo, cost = charge.key, charge.hi, charge.lo, charge[1]
  local total, taken = cost, cost
  if charge.used == 0 then
    if charge.newest then call('DEL', key) end
    call('RPUSH', key, pack('<I6I4I4I4', hi, lo, total, taken))
  else
    if charge.past > 0 then call('LTRIM', key, charge.past, -1) end
    local newest_hi, newest_lo, newest_total, newest_taken = open(charge.newest, charge[3])
    total = (newest_total + cost) % 4294967296
    if newest_hi == hi and newest_lo == lo then
      call('LSET', key, -1, pack('<I6I4I4I4', hi, lo, total, newest_taken + cost))
    else
      call('RPUSH', key, pack('<I6I4I4I4', hi, lo, total, taken))
    end
  end
  call('PEXPIREAT', key, expiry(plus(hi, lo, charge[4])))
end

-- The mark is the start of the bucket that was charged.
function rule.refund(charge, mark_hi, mark_lo)
  local key, cost = charge.key, charge[1]
  view(charge)
  if charge.used == 0 then return end
  local function reaches(raw)
    local hi, lo = open(raw, charge[3])
    return not more(mark_hi, mark_lo, 0, hi, lo, 0)
  end
  local index, raw = seek(key, charge.past - 1, reaches)
  if not raw then return end
  local hi, lo, total, taken = open(raw, charge[3])
  if hi ~= mark_hi or lo ~= mark_lo then return end

  -- Later buckets are untouched, but for their running totals.
  local back = math.min(taken, cost)
  local later = call('LRANGE', key, index, -1)
  if index == 0 then call('DEL', key) else call('LTRIM', key, 0, index - 1) end
  for _, each in ipairs(later) do
    hi, lo, total, taken = unpack_from('<I6I4I4I4', each)
    if each == raw then taken = taken - back end
    if taken > 0 then call('RPUSH', key, pack('<I6I4I4I4', hi, lo, (total - back) % 4294967296, taken)) end
  end
  local newest = entry(key, -1)
  if newest then
    hi, lo = unpack_from('<I6I4I4I4', newest)
    call('PEXPIREAT', key, expiry(plus(hi, lo, charge[4])))
  end
end
