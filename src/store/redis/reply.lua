  -- What is told of the request, unless something is to be made for it first.
  if wrong and type(wrong) == 'number' then wanted, wrong = wrong, nil end
  if not wanted then
    if wrong then
      wrong = type(wrong) == 'table' and wrong.err or tostring(wrong)
      -- Redis 6.2 puts where it happened before it, `@user_script: 17: -`, and ends the line.
      wrong = sub_string(wrong, 1, 999):gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
      reply[parts + 1], reply[parts + 2], reply[parts + 3] = 'e', pack('<I2', #wrong), wrong
      parts = parts + 3
    elseif is_again then
      seldom.ask_again()
    elseif not decides then
      reply[parts + 1] = char(121, 0)
      parts = parts + 1
    elseif noted then
      reply[parts + 1] = char(room and 121 or 110, (part - parts - 1) / 2)
      parts = part
    elseif raw then
      reply[parts + 1] = room and 'y\1\1' or 'n\1\1'
      parts = parts + 2
      reply[parts] = raw
    else
      parts = parts + 1
      reply[parts] = room and 'y\1\0' or 'n\1\0'
    end
    wrong = nil
    if fresh and next_at <= length then
      local _, last = string.find(text, '^=*', next_at)
      alike = last
    end
    at = next_at
    key = next_key
  end
end
return table.concat(reply, '', 1, parts)
