-- What a script can see, and how it is run.
--
-- The global table is emptied for good: it keeps a metatable that finds names in `globals`, complains about others and
-- refuses new ones. Emptying the table itself, rather than giving each script an environment, means that there is no
-- other one to escape to: code made by loadstring or running in a coroutine sees the same.
--
-- Redis's Lua has read-only tables; stock Lua has not. Here the libraries are empty tables that find their contents
-- through a metatable, and the few functions that look past metatables know about them.
--
-- Nothing that Python answers may make Lua allocate: the memory limit is on again by then, and an error of Lua inside a
-- call of Python would leave the interpreter's lock taken. So Python puts a string into `slot` while the limit is off,
-- and a status is a mark. `received` makes the reply of them.
--
-- Nothing here may use a global once it was removed, hence the locals.

local host, crossing, libraries, load_library, pattern_function, spent, set_look = ...

local error, getmetatable, next, pairs, pcall, rawget, rawset = error, getmetatable, next, pairs, pcall, rawget, rawset
local select, setmetatable, tostring, type, xpcall = select, setmetatable, tostring, type, xpcall
local collectgarbage, loadstring = collectgarbage, loadstring
local concat, format, gsub, find = table.concat, string.format, string.gsub, string.find
local byte, sub, dump, match = string.byte, string.sub, string.dump, string.match
local floor, max, min, time, tonumber = math.floor, math.max, math.min, os.time, tonumber
local create, resume = coroutine.create, coroutine.resume
local slot, ok_mark, status_mark, call = host.slot, host.ok_mark, host.status_mark, host.call
local gathered = host.gathered
local getinfo, sethook, gcinfo = debug.getinfo, debug.sethook, gcinfo

local READ_ONLY = "Attempt to modify a readonly table"
local INSTRUCTIONS, FEWEST = 10000, 10 -- between two looks at the clock: as many as take SOON to LATE
local SOON, LATE = 1, 10 -- milliseconds
local MUCH_WORK = 2 ^ 24 -- instructions times kilobytes: one may go through all of Lua's memory, which takes 2 s then

-- read-only tables --------------------------------------------------------------------------------------------

local contents = {} -- by read-only table

local function refuse() error(READ_ONLY, 2) end

local function protect(real)
    local facade = setmetatable({}, {__index = real, __newindex = refuse, __metatable = false})
    contents[facade] = real
    return facade
end

local function kind_of(...)
    return select("#", ...) == 0 and "no value" or type((...))
end

local function check_table(name, ...)
    if type((...)) ~= "table" then
        error("bad argument #1 to '" .. name .. "' (table expected, got " .. kind_of(...) .. ")", 3)
    end
end

-- Names of our own chunks: SCRIPT KILL and the line of an error pass their functions over.
local internal_names = {
    ["=sandbox.lua"] = true, ["=library.lua"] = true, ["=patterns.lua"] = true, ["=native.lua"] = true,
    ["=cjson.lua"] = true, ["=cmsgpack.lua"] = true,
    ["=effort.lua"] = true, ["=host.lua"] = true,
}

local function patched(chunk)
    if crossing.outside(host.keep_frames, gathered.keep_frames, dump(chunk)) ~= true then
        return nil, "function or expression too complex"
    end
    return loadstring(slot[1], "=?")
end

local library = load_library(
    function(subject) return contents[subject] ~= nil end, patched,
    function(name) return internal_names[name] ~= nil end, pattern_function, host.max_pattern_of_c, host.long_sort,
    spent, host.seed
)
local relay = library.relay

local globals = {_VERSION = _VERSION, _G = _G}
for _, name in pairs({
    "assert", "error", "gcinfo", "getmetatable", "ipairs", "rawequal", "select", "tonumber", "tostring", "type",
}) do
    globals[name] = _G[name]
end
globals.unpack, globals.loadstring, globals.load = library.unpack, library.loadstring, library.load

function globals.next(...)
    check_table("next", ...)
    local subject, key = ...
    return next(contents[subject] or subject, key)
end

function globals.pairs(...)
    check_table("pairs", ...)
    local subject = ...
    local real = contents[subject]
    if not real then return next, subject, nil end
    local copy = {}
    for key, value in next, real do copy[key] = value end
    return next, copy, nil
end

function globals.rawget(subject, ...) return relay("rawget", pcall(rawget, contents[subject] or subject, ...)) end

function globals.rawset(subject, ...)
    if contents[subject] then error(READ_ONLY, 0) end
    return relay("rawset", pcall(rawset, subject, ...))
end

function globals.setmetatable(subject, ...)
    if contents[subject] then error(READ_ONLY, 0) end
    return relay("setmetatable", pcall(setmetatable, subject, ...))
end

function globals.collectgarbage(what, ...)
    -- Stopping or tuning the collector would outlive the script.
    if what == nil or what == "collect" or what == "count" or what == "step" then
        return relay("collectgarbage", pcall(collectgarbage, what or "collect", ...))
    end
    return 0
end

local tick -- the hook, see below

-- An attempt that fails for want of memory may have copied much, and leaves no garbage to find it by. Where the stack
-- ends, the hook fails too, because it needs some.
local function count_attempt(problem)
    if problem == "not enough memory" then
        spent(2 ^ 20)
    elseif type(problem) == "string" and sub(problem, -14) == "stack overflow" then
        tick()
    elseif problem == "error in error handling" then
        tick()
    end
end

-- What a script sees of an error: no exception of Python. Python answers errors as tables; the only exception is lupa's
-- when it has no memory for the arguments of a call.
local function seen(problem)
    count_attempt(problem)
    if type(problem) == "userdata" and problem ~= libraries.cjson.null then
        crossing.recover()
        return "not enough memory"
    end
    return problem
end

-- Redis's pcall hands out the text of an error reply instead of its table.
local function text_of_error(ok, ...)
    if ok then return ok, ... end
    local problem = seen((...))
    if type(problem) == "table" and type(rawget(problem, "err")) == "string" then return false, problem.err end
    return false, problem
end

function globals.pcall(...)
    if select("#", ...) == 0 then error("bad argument #1 to 'pcall' (value expected)", 2) end
    return text_of_error(pcall(...))
end

-- running too long ----------------------------------------------------------------------------------------------

local function internal(info)
    return info.what == "C" or info.what == "tail" or internal_names[info.source] ~= nil
end

local function kill() error({err = "ERR Script killed by user with SCRIPT KILL..."}, 0) end

local function kill_script()
    if not internal(getinfo(2, "S")) then kill() end
end

local armed = false -- the hook stays between scripts; setting it takes longer than a short script
local dying = false

local count = INSTRUCTIONS -- until the hook is called
local most = INSTRUCTIONS -- what `count` may be: fewer where Lua has so much memory that one may take long
local rest = 0 -- how often the hook still looks at no more than the second, because `most` is small
local second = 0
local due = false -- the garbage collector has asked for a look at the next instruction

-- Answers how many milliseconds have passed since the look before.
local function look()
    local passed = host.tick()
    if passed == true then
        armed, dying = false, true
        -- From now on every instruction of the script fails, so that no pcall of it can go on.
        sethook(kill_script, "", 1)
        kill()
    end
    return passed or 0
end
set_look(look)

local alive, copies, collected, renew = crossing.alive, crossing.copies, crossing.collected, crossing.renew

-- An instruction may take a nanosecond or, with long strings, a tenth of a second. So the count follows the time. It
-- can only follow: the memory that Lua has bounds what the next ones may take, for strings that are compared or read as
-- numbers, and tables whose elements were removed. A look takes as long as some hundred instructions, so where memory
-- keeps the count small, the hook looks whether it is another second, which is cheaper.
function tick()
    if rest > 0 and not due and time() == second then
        rest = rest - 1
        return
    end
    if alive[1] == nil then renew() end
    local passed, before = look(), count
    second = time()
    most = max(FEWEST, min(INSTRUCTIONS, floor(MUCH_WORK / gcinfo())))
    rest = 0
    if passed > LATE then
        count = min(most, max(FEWEST, floor(count * LATE / passed)))
    else
        if passed < SOON and not due then count = 10 * count end
        count = min(most, count)
        if count == most then rest = floor(INSTRUCTIONS / most) - 1 end
    end
    if due or count ~= before then
        due = false
        sethook(tick, "", count)
    end
end

local function arm()
    armed = true
    sethook(tick, "", count)
end

-- A script that makes much garbage in few instructions, as `..` does of long strings, keeps the collector busy: each
-- cycle of it asks for a look.
crossing.set_notify(function()
    if armed and not dying then
        due = true
        sethook(tick, "", 1)
    end
end)

local ATTEMPTS = 220 -- as often as Lua calls a handler that fails itself, until nested calls of C come to their limit
local for_handler = false -- Lua calls no handler where memory or the stack have ended

local function note(problem)
    for_handler = true
    return problem
end

-- Lua calls the handler of an error where the error was raised. That may be inside a hook, where Lua calls no other, so
-- that nothing could end it, or beyond the limit of nested calls of C. So a script's handler runs after xpcall.
local function handled(handler, ok, ...)
    if ok then return ok, ... end
    local problem = ...
    for _ = 1, ATTEMPTS do
        local is_for_handler = for_handler
        for_handler = false
        problem = seen(problem)
        if dying or not is_for_handler then return false, problem end
        ok, problem = xpcall(function() return handler(problem) end, note)
        if ok then return false, problem end
    end
    for_handler = false
    return false, "error in error handling"
end

function globals.xpcall(...)
    local called, handler = ...
    if type(handler) ~= "function" then return relay("xpcall", pcall(xpcall, ...)) end
    return handled(handler, xpcall(called, note))
end

local coroutines = {}
for name, value in pairs(coroutine) do coroutines[name] = value end

-- A hook belongs to one coroutine: when a script ends inside one, the others must end too.
local function resumed(ok, ...)
    if dying then
        sethook(kill_script, "", 1)
        kill()
    end
    if ok then return ok, ... end
    return false, seen((...))
end

function coroutines.create(...)
    local made = relay("create", pcall(create, ...))
    sethook(made, tick, "", count)
    return made
end

-- Each has a count of its own, and may end before its hook is called.
local A_RESUME = 2 ^ 20

function coroutines.resume(...)
    spent(A_RESUME)
    return resumed(relay("resume", pcall(resume, ...)))
end

local function results_of_wrapped(ok, ...)
    if ok then return ... end
    error((...), 3)
end

function coroutines.wrap(...)
    local made = relay("wrap", pcall(create, ...))
    sethook(made, tick, "", count)
    return function(...)
        spent(A_RESUME)
        return results_of_wrapped(resumed(resume(made, ...)))
    end
end

local function is_break(letter) return letter == 10 or letter == 13 end

-- redis.* ---------------------------------------------------------------------------------------------------------

local resp = 2 -- the form in which redis.call answers; redis.setresp changes it until the script ends

local function raise(text) error({err = "ERR " .. text}, 0) end

local redis = {
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
    REDIS_VERSION = host.version, REDIS_VERSION_NUM = host.version_number,
}

local function received(reply)
    if reply == true then
        reply, slot[1] = slot[1], false
    elseif reply == ok_mark then
        reply = {ok = "OK"}
    elseif reply == status_mark then
        reply = {ok = slot[1]}
    end
    return reply
end

local DIRECT, MUCH, check_size, hand_over = crossing.direct, crossing.much, crossing.check_size, crossing.hand_over
local call_gathered = gathered.call

-- What `outside` in host.lua does is written out, as a call of a function with "..." costs a tenth of a command.
function redis.call(...)
    local count, reply = select("#", ...)
    if count * gcinfo() > MUCH then check_size(...) end
    if count > DIRECT then
        hand_over(...)
        copies.__gc = nil
        reply = call_gathered(resp)
    else
        copies.__gc = nil
        reply = call(resp, ...)
    end
    copies.__gc = collected
    if alive[1] == nil then renew() end
    if reply == ok_mark then return {ok = "OK"} end
    if reply == true then
        reply, slot[1] = slot[1], false
        return reply
    end
    if type(reply) ~= "table" then return reply end
    reply = received(reply)
    if reply.err then error(reply, 0) end
    return reply
end

function redis.pcall(...) return received(crossing.outside(call, call_gathered, resp, ...)) end

-- A function of Python, which answers a value or an error.
local function ask(name, ...)
    local reply = received(crossing.outside(host[name], gathered[name], ...))
    if type(reply) == "table" then error(reply, 0) end
    return reply
end

-- Without the line breaks at both ends. Not by a pattern, which would try all of them again for each of them.
local function trimmed(text, first)
    local last = #text
    while first <= last and is_break(byte(text, first)) do first = first + 1 end
    while first <= last and is_break(byte(text, last)) do last = last - 1 end
    return sub(text, first, last)
end

local function one_string(...) return select("#", ...) == 1 and type((...)) == "string" end

function redis.error_reply(...)
    if not one_string(...) then return {err = "ERR wrong number or type of arguments"} end
    local text = gsub((...), "^%-", "")
    local space = find(text, " ", 1, true)
    local code = space and sub(text, 1, space - 1) or "ERR"
    return {err = code .. " " .. trimmed(text, (space or 0) + 1)}
end

function redis.status_reply(...)
    if not one_string(...) then return {err = "ERR wrong number or type of arguments"} end
    return {ok = (...)}
end

function redis.sha1hex(...)
    if select("#", ...) ~= 1 then raise("wrong number of arguments") end
    local subject = ...
    local text = type(subject) == "number" and tostring(subject) or type(subject) == "string" and subject or ""
    spent(#text)
    return ask("sha1hex", text)
end

function redis.log(...)
    local count, level = select("#", ...), ...
    if count < 2 then raise("redis.log() requires two arguments or more.") end
    if type(level) ~= "number" then raise("First argument must be a number (log level).") end
    if not (level >= 0 and level <= 3) then raise("Invalid debug level.") end
    local words = {}
    for at = 2, count do
        local word = select(at, ...)
        if type(word) == "string" or type(word) == "number" then words[#words + 1] = word end
    end
    local text = concat(words, " ")
    spent(#text)
    ask("log", level, text)
end

function redis.setresp(...)
    if select("#", ...) ~= 1 then raise("redis.setresp() requires one argument.") end
    local version = floor(tonumber((...)) or 0) -- as C makes an int of it: "3" and 3.5 are 3
    if version ~= 2 and version ~= 3 then raise("RESP version must be 2 or 3.") end
    resp = version
end

function redis.set_repl(...)
    if select("#", ...) ~= 1 then raise("redis.set_repl() requires one argument.") end
    local flags = ...
    if type(flags) ~= "number" or flags < 0 or flags > 3 then
        raise("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
    end
end

function redis.acl_check_cmd(...)
    if select("#", ...) == 0 then raise("Please specify at least one argument for this redis.acl_check_cmd() call") end
    local allowed = crossing.outside(host.may, gathered.may, ...)
    if type(allowed) == "table" then error(allowed, 0) end
    if allowed == nil then raise("Invalid command passed to redis.acl_check_cmd()") end
    return allowed
end

function redis.replicate_commands() return true end
function redis.breakpoint() return false end
function redis.debug() end

-- a script's value as a reply -----------------------------------------------------------------------------------

local MAX_DEPTH = 2000 -- a reply that refers to itself must end somewhere

-- A status or an error is one line, and to Redis a C string; an error loses the line breaks at its end.
local PIECE = 2 ^ 20

local function until_zero(text)
    local zero = find(text, "\0", 1, true)
    return zero and sub(text, 1, zero - 1) or text
end

local function line(text)
    text = until_zero(text)
    if not (find(text, "\n", 1, true) or find(text, "\r", 1, true)) then return text end
    local pieces = {}
    for first = 1, #text, PIECE do
        spent(PIECE * 16)
        pieces[#pieces + 1] = gsub(sub(text, first, first + PIECE - 1), "[\r\n]", " ")
    end
    return concat(pieces)
end

local function error_line(text)
    text = until_zero(text)
    local last = #text
    while is_break(byte(text, last)) do last = last - 1 end
    return line(sub(text, 1, last))
end

local write

local function write_keys(mark, items, count, with_values, protocol, put, depth)
    put(mark .. count .. "\r\n")
    for key, value in next, items do
        write(key, protocol, put, depth)
        if with_values then write(value, protocol, put, depth) end
    end
end

local function size_of(items)
    local count = 0
    for _ in next, items do count = count + 1 end
    return count
end

local function write_table(value, protocol, put, depth)
    local err, ok, double = rawget(value, "err"), rawget(value, "ok"), rawget(value, "double")
    local map, set, big = rawget(value, "map"), rawget(value, "set"), rawget(value, "big_number")
    local verbatim = rawget(value, "verbatim_string")
    if type(err) == "string" then
        put("-" .. error_line(err) .. "\r\n")
    elseif type(ok) == "string" then
        put("+" .. line(ok) .. "\r\n")
    elseif type(double) == "number" then
        local text = format("%.17g", double)
        put(protocol == 2 and "$" .. #text .. "\r\n" .. text .. "\r\n" or "," .. text .. "\r\n")
    elseif type(map) == "table" then
        local count = size_of(map)
        write_keys(protocol == 2 and "*" or "%", map, protocol == 2 and 2 * count or count, true, protocol, put, depth)
    elseif type(set) == "table" then
        write_keys(protocol == 2 and "*" or "~", set, size_of(set), false, protocol, put, depth)
    elseif type(big) == "string" then
        big = line(big)
        put(protocol == 2 and "$" .. #big .. "\r\n" .. big .. "\r\n" or "(" .. big .. "\r\n")
    elseif type(verbatim) == "table" and type(verbatim.string) == "string" and type(verbatim.format) == "string" then
        local text = verbatim.string
        if protocol == 3 then text = sub(verbatim.format .. "   ", 1, 3) .. ":" .. text end
        put((protocol == 2 and "$" or "=") .. #text .. "\r\n" .. text .. "\r\n")
    else
        local count = 0
        while rawget(value, count + 1) ~= nil do count = count + 1 end
        put("*" .. count .. "\r\n")
        for at = 1, count do write(rawget(value, at), protocol, put, depth) end
    end
end

function write(value, protocol, put, depth)
    local kind = type(value)
    if kind == "string" then
        put("$" .. #value .. "\r\n" .. value .. "\r\n")
    elseif kind == "number" then
        put(format(":%d\r\n", value))
    elseif kind == "boolean" and resp == 3 then
        put(protocol == 3 and (value and "#t\r\n" or "#f\r\n") or (value and ":1\r\n" or ":0\r\n"))
    elseif value == true then
        put(":1\r\n")
    elseif kind == "table" and depth > MAX_DEPTH then
        put("-ERR reached lua stack limit\r\n")
    elseif kind == "table" then
        write_table(value, protocol, put, depth + 1)
    else
        put(protocol == 2 and "$-1\r\n" or "_\r\n")
    end
end

local function encode(value, protocol)
    local pieces, count = {}, 0
    write(value, protocol, function(piece)
        count = count + 1
        pieces[count] = piece
    end, 0)
    return concat(pieces)
end

-- the way in ------------------------------------------------------------------------------------------------------

-- Runs where an error was raised: note the script's line, which only the stack knows.
local function locate(problem)
    local text, counted
    if type(problem) == "table" then
        counted = rawget(problem, "ignore_error_stats_update")
        text = rawget(problem, "err")
        if type(text) ~= "string" then text = "ERR unknown error" end
    else
        text = "ERR " .. tostring(problem)
    end
    local level = 2
    local info = getinfo(level, "Sl")
    while info and internal(info) do
        level = level + 1
        info = getinfo(level, "Sl")
    end
    local where = info and ", on " .. info.source .. ":" .. info.currentline .. "." or ""
    return {err = text, counted = counted, where = where}
end

local function checked(ok, problem, sha)
    if ok then return true end
    if type(problem) ~= "table" then problem = {err = "ERR " .. tostring(problem), where = ""} end
    return false, problem.err .. " script: " .. sha .. problem.where, problem.counted
end

-- Answers true and the encoded reply, or false, the text of an error, and whether it was counted when a command failed.
local function run(script, sha, keys, arguments, protocol)
    globals.KEYS, globals.ARGV = keys, arguments
    resp, dying = 2, false -- the one before may have run out of memory while it was killed
    for_handler = false
    if not armed then arm() end
    crossing.recover()
    host.limit_memory(true)
    local refused, counted
    local ok, reply = xpcall(function()
        local value = script()
        if type(value) == "table" and type(rawget(value, "err")) == "string" then
            refused, counted = error_line(rawget(value, "err")), rawget(value, "ignore_error_stats_update")
        else
            return encode(value, protocol)
        end
    end, locate)
    host.limit_memory(false)
    if refused then
        ok, reply = false, refused
    elseif not ok then
        ok, reply, counted = checked(ok, reply, sha)
    end
    if not armed then sethook() end
    globals.KEYS, globals.ARGV = nil, nil
    return ok, reply, counted == true
end

-- Answers true and the function, or false and why not.
local function compile(source)
    if byte(source) == 27 then return false, "user_script: attempt to load a binary chunk" end
    local script, problem = loadstring(source, "@user_script")
    if script then script, problem = patched(script) end
    if not script then return false, problem end
    return true, script
end

-- closing the box -------------------------------------------------------------------------------------------------

globals.coroutine = protect(coroutines)
globals.string, globals.table, globals.math = protect(library.string), protect(library.table), protect(math)
globals.redis = protect(redis)
for name, library in pairs(libraries) do globals[name] = protect(library) end
local meta = getmetatable("")
meta.__index, meta.__metatable = library.string, protect({__index = globals.string})

local everything = _G
local names = {}
for name in pairs(everything) do names[#names + 1] = name end
for _, name in pairs(names) do everything[name] = nil end
local strict = {__index = function(_, name)
    -- lupa looks for debug.traceback whenever Python calls Lua, where an error would end the process.
    if name == "debug" then
        local info = getinfo(2, "S")
        if not info or info.what == "C" then return nil end
    end
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end}
setmetatable(globals, strict)
setmetatable(everything, {__index = globals, __newindex = refuse, __metatable = protect(strict)})

-- All objects of Python share a metatable. Only their call is of use here; a script that got hold of an object could do
-- nothing with it. They need no finalizer: a function of Python lives as long as Lua does.
local of_python = getmetatable(call)
for name in pairs(of_python) do
    if name ~= "__call" then of_python[name] = nil end
end
of_python.__metatable = false
contents[everything] = globals

return run, compile
