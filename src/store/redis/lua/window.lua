-- Windows with a fixed end: fixed windows, and calendar windows, as src/algorithm/window.rs.
--
-- A key expires at the end of its window. The first count is how much was charged in it.

-- Returns whether the window has room for the cost, its end, and its count. Scripts know no calendars: the end of a
-- calendar window was found among those that were sent.
local function peek(now, cost, hard, amount, span, expires, _, count, _, window_end)
  -- A window goes on until its end. It may be a later one than the clock's, after the clock has stepped back.
  if expires > now then return count + cost <= hard, expires, count end
  if tag == ScriptTag.FixedWindow then window_end = now - now % span + span end
  if not window_end then
    local second = string.format('%d', math.floor(now / 1e6))
    error({ err = 'OUTSIDE ' .. second .. ' s, the present instant, is in no window that was sent' })
  end
  return cost <= hard, window_end, 0
end

-- Returns the state after a charge of the window that `peek` has found.
local function charge(now, cost, hard, amount, span, expires, count)
  return expires, 0, count + cost, 0, 0
end

if not is_refund then return peek, charge end

-- Refunds a charge, if the window of its mark has not ended.
local function refund(now, cost, hard, amount, span, expires, _, count, _, marked)
  if expires ~= marked or expires <= now then return end
  if count <= cost then return 0 end
  return expires, 0, count - cost, 0, 0
end

return peek, charge, refund
