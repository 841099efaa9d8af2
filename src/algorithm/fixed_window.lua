-- The twin of fixed_window.rs. A key holds the end of its window, and its count.
local function fixed_window()
  local rule = { numbers = '<ddd' }

  -- The end of the window that counts now, what it counts, and whether a clock fell back by far.
  local function current(key, period)
    local raw, hi, lo, count = read(key)
    local end_hi, end_lo = window_start(period)
    end_hi, end_lo = plus(end_hi, end_lo, period)
    local ahead = apart(hi, lo, end_hi, end_lo)
    if ahead < 0 then return raw, end_hi, end_lo, 0, false end
    -- This window, or the next one after a clock stepped back: time waits for it.
    if ahead <= period then return raw, hi, lo, count, false end
    return raw, end_hi, end_lo, count, true
  end

  function rule.peek(charge)
    local cost, limit, period = charge[1], charge[2], charge[3]
    charge.held, charge.hi, charge.lo, charge.count, charge.ahead = current(charge.key, period)
    return charge.count + cost <= limit
  end

  function rule.commit(charge)
    local hi, lo = charge.hi, charge.lo
    write(charge.key, hi, lo, charge.count + charge[1], 0, hi, lo)
  end

  function rule.fall_back(charge)
    local hi, lo = charge.hi, charge.lo
    write(charge.key, hi, lo, charge.count, 0, hi, lo)
  end

  function rule.refund(charge, mark_hi, mark_lo)
    local raw, hi, lo, count = current(charge.key, charge[3])
    if raw == '' or hi ~= mark_hi or lo ~= mark_lo then return end
    if count <= charge[1] then return call('DEL', charge.key) end
    write(charge.key, hi, lo, count - charge[1], 0, hi, lo)
  end

  return rule
end
