  local ok, wrong = pcall(run)
  wanted = not ok and type(wrong) == 'number' and wrong ~= wanted and wrong
  if not (ok or wanted) then
    wrong = sub_string(type(wrong) == 'table' and wrong.err or tostring(wrong), 1, 999)
    -- Redis 6.2 puts where it happened before it, `@user_script: 17: -`, and ends the line.
    wrong = wrong:gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
    reply[parts + 1], reply[parts + 2], reply[parts + 3] = 'e', pack('<I2', #wrong), wrong
    parts = parts + 3
    at, key = next_at, next_key
  end
end
return table.concat(reply, '', 1, parts)
