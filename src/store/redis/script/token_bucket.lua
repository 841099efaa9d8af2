-- The twin of src/algorithm/interval_bucket.rs, of what is filled at intervals; filled evenly it is for drain.lua. A key
-- holds the instant at which an interval ends, how many tokens are missing until then, and the amount that
-- each interval brings.
rule = { numbers = '<dddd', peek = false, commit = false, adopt = false, refund = false }

-- How many tokens are missing now of those missing before (hi, lo), and how long until the
-- next interval. All of this is exact where it matters: a bucket fills in at most 2^32 intervals.
local function missing(charge, hi, lo, count, amount)
  local interval = charge[4]
  if count == 0 then return 0, interval end
  local left, rest, ended
  local left_hi, left_lo = sub(hi, lo, 0, now_hi, now_lo, 0, 1)
  if left_hi < 0 or left_hi + left_lo == 0 then
    left_hi, left_lo = sub(now_hi, now_lo, 0, hi, lo, 0, 1)
    rest = rest_of(left_hi, left_lo, interval)
    ended = floor((left_hi * 1e9 + left_lo - rest) / interval + 0.5) + 1
    rest = interval - rest
  else
    rest = rest_of(left_hi, left_lo, interval)
    ended = -floor((left_hi * 1e9 + left_lo - rest) / interval + 0.5)
    if rest == 0 then rest, ended = interval, ended + 1 end
  end
  local intervals = ceil(count / amount) - ended
  if intervals <= 0 then return 0, interval end
  count = count - ended * amount
  -- At another rate, more might never come back.
  if amount ~= charge[3] and count > 4294967295 then count = 4294967295 end
  return count, rest
end

-- What a key holds; before amounts were kept, it is the limit's own.
local function recall(charge)
  local raw, hi, lo, count, amount = read(charge.key)
  return raw, hi, lo, count, amount > 0 and amount or charge[3]
end

-- The instant from which no token is missing of those missing before (hi, lo).
local function full_at(hi, lo, count, amount, interval)
  return plus(hi, lo, (ceil(count / amount) - 1) * interval)
end

-- Notes that `count` tokens are missing before (hi, lo).
local function hold(charge, hi, lo, count, was_hi, was_lo)
  local amount = charge[3]
  local until_hi, until_lo = full_at(hi, lo, count, amount, charge[4])
  write(charge.key, hi, lo, count, amount, until_hi, until_lo, was_hi, was_lo)
end

function rule.peek(charge)
  local raw, hi, lo, count, amount = recall(charge)
  charge.moved, charge.was_hi = amount ~= charge[3], false
  if raw ~= '' and not charge.moved then charge.was_hi, charge.was_lo = full_at(hi, lo, count, amount, charge[4]) end
  count, charge.n = missing(charge, hi, lo, count, amount)
  charge.count = count
  return count + charge[1] <= charge[2], raw
end

function rule.commit(charge)
  local hi, lo = plus(now_hi, now_lo, charge.n)
  hold(charge, hi, lo, charge.count + charge[1], charge.was_hi, charge.was_lo)
end

-- Has what is missing come back at the limit's own rate from now on.
function rule.adopt(charge)
  if charge.count == 0 then return end
  local hi, lo = plus(now_hi, now_lo, charge.n)
  hold(charge, hi, lo, charge.count)
end

-- The mark is the first instant at which tokens came back after the charge: for it before all
-- others, as src/algorithm/interval_bucket.rs says why.
function rule.refund(charge, mark_hi, mark_lo, _, mark_amount)
  local raw, hi, lo, count, written = recall(charge)
  if raw == '' then return end
  local amount, interval = charge[3], charge[4]
  local refills = 0
  local since_hi, since_lo = sub(now_hi, now_lo, 0, mark_hi, mark_lo, 0, 1)
  if since_hi >= 0 then
    refills = floor((since_hi * 1e9 + since_lo - rest_of(since_hi, since_lo, interval)) / interval + 0.5) + 1
  elseif apart(mark_hi, mark_lo, now_hi, now_lo) > interval then
    -- A clock that stepped back can't say how many there were.
    return
  end
  -- Nor how many tokens each brought, or is to bring: what is given back changes no rate.
  if mark_amount ~= amount or written ~= amount then return end
  local back = math.max(charge[1] - refills * amount, 0)
  if missing(charge, hi, lo, count, written) <= back then return call('DEL', charge.key) end
  count = count - back
  if count <= 0 then
    -- Full before that interval: what is missing is counted to an earlier one.
    local intervals = floor(-count / amount) + 1
    count = count + intervals * amount
    local span_hi, span_lo = divide(intervals, interval, 1e9)
    hi, lo = sub(hi, lo, 0, span_hi, span_lo, 0, 1)
  end
  hold(charge, hi, lo, count)
end
