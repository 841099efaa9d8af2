-- The twin of fixed_window.rs. A key holds the end of its window, and its count.
local function fixed_window()
  local rule = { numbers = '<ddd' }

  -- The end of the window that counts now, and what it counts.
  local function current(key, period)
    local raw, hi, lo, count = read(key)
    local end_hi, end_lo = window_start(period)
    end_hi, end_lo = plus(end_hi, end_lo, period)
    if apart(hi, lo, end_hi, end_lo) < 0 then return raw, end_hi, end_lo, 0 end
    -- This window, or a later one after a clock stepped back: time stands still until then.
    return raw, hi, lo, count
  end

  function rule.peek(charge)
    local cost, limit, period = charge[1], charge[2], charge[3]
    charge.held, charge.hi, charge.lo, charge.count = current(charge.key, period)
    return charge.count + cost <= limit
  end

  function rule.commit(charge)
    local hi, lo = charge.hi, charge.lo
    write(charge.key, hi, lo, charge.count + charge[1], 0, hi, lo)
  end

  function rule.refund(charge, mark_hi, mark_lo)
    local raw, hi, lo, count = current(charge.key, charge[3])
    if raw == '' or hi ~= mark_hi or lo ~= mark_lo then return end
    if count <= charge[1] then return call('DEL', charge.key) end
    write(charge.key, hi, lo, count - charge[1], 0, hi, lo)
  end

  return rule
end
