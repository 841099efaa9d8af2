-- Writes `state`: over what is there from an `offset` on, as that keeps the expiry, which is moved if it `expires` at
-- another ms.
if offset then
  -- Told is how long it is then, or what is wrong.
  local kept = try('SETRANGE', id, offset, state)
  if kept ~= 18 then
    wrong = kept
  elseif expires then
    call('PEXPIREAT', id, expires)
  end
else
  local kept = try('SET', id, state, 'PXAT', expires)
  if kept.err then wrong = kept end
end
