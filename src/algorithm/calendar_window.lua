-- The twin of calendar_window.rs. No script knows calendars, so that a charge brings the edges of four windows,
-- in seconds: those around the instant that its sender takes for the present one.
if wanted == 107 then
  rule.numbers = '<ddddddd'
  function current(charge)
    local raw, hi, lo, count = read(charge.key)
    -- A window goes on until the end that it was begun with.
    if (hi - now_hi) * 1e9 + (lo - now_lo) > 0 then return raw, hi, lo, count end
    local now = now_hi * 1000 + floor(now_lo / 1e6)
    if now >= charge[3] then
      for edge = 4, 7 do
        local ends = charge[edge]
        if now < ends then return raw, floor(ends / 1000), fmod(ends, 1000) * 1e6, 0 end
      end
    end
    error({ err = 'OUTSIDE ' .. format('%d', now) .. ' s, the present instant, is in no window that was sent' })
  end
end
