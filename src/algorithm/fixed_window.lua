-- The twin of windows.rs. A key holds the end of its window, and its count. `current` says of a charge what
-- its key holds, the end of the window that counts now, and what it counts.
local function count_in_windows(numbers, current)
  local rule = { numbers = numbers }

  function rule.peek(charge)
    charge.held, charge.hi, charge.lo, charge.count = current(charge)
    return charge.count + charge[1] <= charge[2]
  end

  function rule.commit(charge)
    local hi, lo = charge.hi, charge.lo
    write(charge.key, hi, lo, charge.count + charge[1], 0, hi, lo)
  end

  function rule.refund(charge, mark_hi, mark_lo)
    local _, hi, lo, count = read(charge.key)
    if hi ~= mark_hi or lo ~= mark_lo or apart(hi, lo, now_hi, now_lo) <= 0 then return end
    if count <= charge[1] then return call('DEL', charge.key) end
    write(charge.key, hi, lo, count - charge[1], 0, hi, lo)
  end

  return rule
end

-- The twin of fixed_window.rs.
local function fixed_window()
  return count_in_windows('<ddd', function(charge)
    local period = charge[3]
    local raw, hi, lo, count = read(charge.key)
    local end_hi, end_lo = window_start(period)
    end_hi, end_lo = plus(end_hi, end_lo, period)
    if apart(hi, lo, end_hi, end_lo) < 0 then return raw, end_hi, end_lo, 0 end
    -- This window, or a later one after a clock stepped back: time stands still until then.
    return raw, hi, lo, count
  end)
end
