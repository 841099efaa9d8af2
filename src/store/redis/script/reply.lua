      elseif charge[1] == 0 then
        -- Who asks for nothing changes nothing.
      elseif charge.rule then
        if take and charge.free then
          guarded(charge.rule.commit, charge)
        elseif charge.moved then
          -- What another rate left is paid at this one, whatever is decided.
          guarded(charge.rule.adopt, charge)
        end
      elseif owing and owing[i] then
        guarded(drains.adopt, unpack(owing[i]))
      end
      if wrong then break end
    end
    if has_penalty and what ~= 112 and not (room or wrong) then guarded(seldom.strike) end
  end
  -- Those that were decided in one go, up to the one that was kept from it, if any was.
  local is_run = not (fresh or noted)
  if is_run then
    next_at = at + name - key
    next_key = name
  end
  -- What is told of the request, unless something is to be made for it first.
  if wrong and type(wrong) == 'number' then
    wanted, wrong = wrong, nil
    if is_run then at, key = next_at - 1, next_key - 1 end
  else
    if wrong then
      wrong = type(wrong) == 'table' and wrong.err or tostring(wrong)
      -- Redis 6.2 puts where it happened before it, `@user_script: 17: -`, and ends the line.
      wrong = sub_string(wrong, 1, 999):gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
      reply[parts + 1], reply[parts + 2], reply[parts + 3] = 'e', pack('<I2', #wrong), wrong
      parts = parts + 3
      wrong = nil
    elseif is_again then
      seldom.ask_again()
    elseif noted then
      if not allowed then
        local keys = (part - parts - 1) / 2
        allowed = char(121, keys)
        denied = char(110, keys)
      end
      reply[parts + 1] = room and allowed or denied
      parts = part
    elseif decides == 0 then
      parts = parts + 1
      reply[parts] = char(121, 0)
    end
    if fresh and next_at <= length then
      local _, last = string.find(text, '^=*', next_at)
      alike = last
    end
    at = next_at
    key = next_key
  end
end
return table.concat(reply, '', 1, parts)
