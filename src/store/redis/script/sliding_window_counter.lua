-- The twin of src/algorithm/sliding_window_counter.rs. A key holds the instant at which it means nothing any
-- more, the count of the window before, and that of its own.
rule = { numbers = '<dddd', peek = false, commit = false, refund = false }

-- What a key holds, the start of the window that counts now, how far into it now is, and both counts.
local function windows(key, period)
  local raw, hi, lo, before, count = read(key)
  local start_hi, start_lo = window_start(period)
  local elapsed = apart(now_hi, now_lo, start_hi, start_lo)
  local ahead = apart(hi, lo, start_hi, start_lo)
  if ahead <= 0 then
    before, count = 0, 0
  elseif ahead <= period then
    before, count = count, 0
  elseif ahead > 2 * period then
    -- A later window, after a clock stepped back: time stands still until its start.
    start_hi, start_lo = plus(hi, lo, -2 * period)
    elapsed = 0
  end
  return raw, start_hi, start_lo, elapsed, before, count, hi, lo
end

local function remember(key, period, hi, lo, before, count, was_hi, was_lo)
  if count > 0 then
    hi, lo = plus(hi, lo, 2 * period)
    return write(key, hi, lo, before, count, hi, lo, was_hi, was_lo)
  end
  if before == 0 then return call('DEL', key) end
  -- The window before, seen as its own.
  hi, lo = plus(hi, lo, period)
  write(key, hi, lo, 0, before, hi, lo)
end

function rule.peek(charge)
  local cost, limit, period, rounds_up = charge[1], charge[2], charge[3], charge[4]
  local raw, hi, lo, elapsed, before, count, was_hi, was_lo = windows(charge.key, period)
  charge.hi, charge.lo, charge.n, charge.count = hi, lo, before, count
  charge.was_hi, charge.was_lo = raw ~= '' and was_hi, was_lo
  local weighted, rest = 0, 0
  if before > 0 then weighted, rest = divide(before, period - elapsed, period) end
  if rest > 0 then weighted = weighted + rounds_up end
  return weighted + count + cost <= limit, raw
end

function rule.commit(charge)
  local count = charge.count + charge[1]
  remember(charge.key, charge[3], charge.hi, charge.lo, charge.n, count, charge.was_hi, charge.was_lo)
end

-- The mark is the instant at which the charge's own window meant nothing any more.
function rule.refund(charge, mark_hi, mark_lo)
  local cost, period = charge[1], charge[3]
  local raw, hi, lo, elapsed, before, count = windows(charge.key, period)
  local later = apart(hi, lo, plus(mark_hi, mark_lo, -2 * period))
  if raw == '' then return end
  if later == 0 then
    remember(charge.key, period, hi, lo, before, math.max(count - cost, 0))
  elseif later == period then
    remember(charge.key, period, hi, lo, math.max(before - cost, 0), count)
  end
end
