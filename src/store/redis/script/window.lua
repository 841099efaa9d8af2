-- The twin of src/algorithm/aligned_window.rs, fixed_window.rs and calendar_window.rs. A key holds the end of its window, and its
-- count: (hi, lo) is the end of the one that counts now, and n what it counts; `a` is the limit.
local n = 0
hi = 0
lo = 0
if raw then
  hi, lo, n = unpack_from('<I6I4I4', raw)
  offset = '0'
  held_hi = hi
  held_lo = lo
end
if letter == 119 then
  -- `b` is the period.
  if b ~= last_period then
    local rest = now_hi < 9007199 and fmod(now, b) or rest_of(now_hi, now_lo, b)
    last_period, end_hi, end_lo = b, now_hi, now_lo - rest + b
    local carry = floor(end_lo / 1e9)
    end_hi, end_lo = end_hi + carry, end_lo - carry * 1e9
  end
  -- A later window was left before the clock stepped back: time stands still until then.
  if (hi - end_hi) * 1e9 + (lo - end_lo) < 0 then hi, lo, n = end_hi, end_lo, 0 end
elseif (hi - now_hi) * 1e9 + (lo - now_lo) <= 0 then
  -- A window goes on until the end that it was begun with. No script knows calendars, so that a charge brings the
  -- edges of four windows, in seconds: those around the instant that its sender takes for the present one.
  local second = now_hi * 1000 + floor(now_lo / 1e6)
  local ends = second >= b and (second < c and c or second < d and d or second < e and e or second < f and f)
  if ends then
    hi, lo, n = floor(ends / 1000), fmod(ends, 1000) * 1e6, 0
  else
    local outside = ' s, the present instant, is in no window that was sent'
    wrong = wrong or { err = 'OUTSIDE ' .. format('%d', second) .. outside }
    if not noted then break end
  end
end
free = n + cost <= a
if free and takes and room and cost > 0 then
  state = pack('<I6I4I4I4', hi, lo, n + cost, 0)
  written_hi = hi
  step = 1000
end
