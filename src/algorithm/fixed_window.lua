-- The twin of windows.rs. A key holds the end of its window, and its count. `current` says of a charge what
-- its key holds, the end of the window that counts now, and what it counts.
rule = { numbers = false, peek = false, commit = false, refund = false }
local current

function rule.peek(charge)
  local raw, hi, lo, count = current(charge)
  charge.hi, charge.lo, charge.count = hi, lo, count
  return count + charge[1] <= charge[2], raw
end

function rule.commit(charge)
  local hi, lo = charge.hi, charge.lo
  call('SET', charge.key, pack('<I6I4I4I4', hi, lo, charge.count + charge[1], 0), 'PXAT', expiry(hi, lo))
end

function rule.refund(charge, mark_hi, mark_lo)
  local _, hi, lo, count = read(charge.key)
  if hi ~= mark_hi or lo ~= mark_lo or apart(hi, lo, now_hi, now_lo) <= 0 then return end
  if count <= charge[1] then return call('DEL', charge.key) end
  write(charge.key, hi, lo, count - charge[1], 0, hi, lo)
end

-- The twin of fixed_window.rs.
if wanted == 119 then
  local last_period, end_hi, end_lo
  rule.numbers = '<ddd'
  function current(charge)
    local period, key = charge[3], charge.key
    if period ~= last_period then
      last_period, end_hi, end_lo = period, now_hi, now_lo - rest_of(now_hi, now_lo, period) + period
      local carry = floor(end_lo / 1e9)
      end_hi, end_lo = end_hi + carry, end_lo - carry * 1e9
    end
    local raw, hi, lo, count = read(key)
    if (hi - end_hi) * 1e9 + (lo - end_lo) < 0 then return raw, end_hi, end_lo, 0 end
    -- This window, or a later one after a clock stepped back: time stands still until then.
    return raw, hi, lo, count
  end
end
