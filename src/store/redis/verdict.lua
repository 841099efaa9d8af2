        end
      elseif owing and cost > 0 and not (noted or wrong or is_again) then
        guarded(drains.adopt, unpack(owing[1]))
      end
      if noted then
        charge.key = id
        charge.state = state
        charge.held = raw
        charge.expires = expires
      end
    end
    if noted then
      -- Of one limit, or more.
      if not raw then
        reply[part + 1], reply[part + 2] = '\0', ''
      else
        reply[part + 1] = rule and char(#raw / 18) or '\1'
        reply[part + 2] = raw
      end
      part = part + 2
      if has_penalty and charge.penalty then
        charge.free = free
        free, part = guarded(seldom.is_free, charge, part), part + 2
      end
    end
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    if not (free or cost == 0) then
      if noted then is_shadow = charge.is_shadow end
      if not is_shadow then room = false end
    end
    if wrong then break end
  end
  if noted and not (wrong or is_again) then
    local take = takes and room
    for i = 1, (take or owing) and decides or 0 do
      local charge = charges[i]
      local state = take and charge.state
      if state then
        local id, raw, expires = charge.key, charge.held, charge.expires
