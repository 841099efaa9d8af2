-- Refunds charges of earlier requests, renews slots, deletes keys, and reads or sets overrides.

for done = progress.done, same do
  progress.done, progress.length = done, length
  local first_key = progress.key + done * keys
  length = length + 1
  reply[length] = 'y' .. char(task == Task.Renew and count or 0)
  if task == Task.Refund or task == Task.Renew then
    local place = start
    for i = first_key, first_key + count - 1 do
      local key, tag = KEYS[i], byte(text, place)
      local mark, cell = place + 1
      cell, place = cell_at(place + 23, tag, nil, nil, true)
      if tag == ScriptTag.Log then
        cell.peek(key, now, cell.cost, cell.capacity, cell.hard, cell.span, cell.first)
        refund(key, unpack('<I7', text, mark), margin)
        if task == Task.Renew then
          local _, entries = cell.peek(key, now, cell.cost, cell.capacity, cell.hard, cell.span, cell.first)
          cell.charge(key, margin)
          reply[length + 1], length = char(#entries) .. entries, length + 1
        end
      else
        local _, expires, at, first, second, kept = read(key)
        local refunded, refunded_at, refunded_first, refunded_second, slack = refund(
          now, cell.cost, cell.hard, cell.amount, cell.span,
          expires, at, first, second, unpack('<I7I7I4I4', text, mark)
        )
        if expires > 0 and refunded then
          if refunded <= now then
            call('DEL', key)
          else
            write(key, kept, refunded, refunded_at, refunded_first, refunded_second, slack)
          end
        end
      end
    end
  elseif task == Task.Reset then
    for i = first_key, first_key + keys - 1 do
      call('DEL', KEYS[i])
    end
  elseif task == Task.GetOverride then
    local state, expires = read(KEYS[first_key])
    if expires > 0 and expires <= now then state = '' end
    reply[length] = 'y\1' .. char(#state) .. state
  else
    -- For a span in µs, or for good if that is negative.
    local span, tokens, amount = unpack('<dI4I4', text, start)
    if span < 0 then
      call('SET', KEYS[first_key], pack('<I7I7I4I4', 0, 0, tokens, amount))
    else
      write(KEYS[first_key], 0, now + span, 0, tokens, amount, 0)
    end
  end
end
return length
