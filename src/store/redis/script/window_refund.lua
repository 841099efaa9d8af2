-- Gives back what was taken of a window that goes on: see window.lua.
local function refund(charge, mark_hi, mark_lo)
  local _, hi, lo, count = read(charge.key)
  if hi ~= mark_hi or lo ~= mark_lo or apart(hi, lo, now_hi, now_lo) <= 0 then return end
  if count <= charge[1] then return call('DEL', charge.key) end
  write(charge.key, hi, lo, count - charge[1], 0, hi, lo)
end

rules[119] = { numbers = '<ddd', refund = refund }
rules[107] = { numbers = '<ddddddd', refund = refund }
