-- MessagePack as the library that Redis carries packs it: the shortest form of a number, at most 16 levels of tables.

local number_to_bytes, number_from_bytes = ...

local error, next, pcall, select, type, unpack = error, next, pcall, select, type, unpack
local byte, char, sub = string.byte, string.char, string.sub
local concat, floor = table.concat, math.floor

local MAX_NESTING = 16

local function fail(text) error(text, 0) end

-- packing -----------------------------------------------------------------------------------------------------

local function integer(number)
    if number >= 0 then
        if number <= 127 then return char(number) end
        if number <= 0xff then return "\204" .. char(number) end
        if number <= 0xffff then return "\205" .. number_to_bytes(">H", number) end
        if number <= 0xffffffff then return "\206" .. number_to_bytes(">I", number) end
        return "\207" .. number_to_bytes(">Q", number)
    end
    if number >= -32 then return char(256 + number) end
    if number >= -128 then return "\208" .. char(256 + number) end
    if number >= -32768 then return "\209" .. number_to_bytes(">h", number) end
    if number >= -2147483648 then return "\210" .. number_to_bytes(">i", number) end
    return "\211" .. number_to_bytes(">q", number)
end

local function number_bytes(number)
    if floor(number) == number and number >= -2 ^ 63 and number < 2 ^ 63 then return integer(number) end
    local short = number_to_bytes(">f", number)
    if short and number_from_bytes(">f", short) == number then return "\202" .. short end
    return "\203" .. number_to_bytes(">d", number)
end

local function header(size, small, small_limit, marks)
    if size < small_limit then return char(small + size) end
    if marks[1] and size <= 0xff then return char(marks[1], size) end
    if size <= 0xffff then return char(marks[2]) .. number_to_bytes(">H", size) end
    return char(marks[3]) .. number_to_bytes(">I", size)
end

-- The length of an array (no gaps, nothing else in it) and how many entries there are in all.
local function shape(items)
    local longest, count = 0, 0
    local array = true
    for key in next, items do
        if type(key) ~= "number" or key < 1 or floor(key) ~= key then
            array = false
        elseif key > longest then
            longest = key
        end
        count = count + 1
    end
    return array and longest == count, count
end

local put

local function put_table(items, pieces, depth)
    local array, count = shape(items)
    if array then
        pieces[#pieces + 1] = header(count, 0x90, 16, {nil, 0xdc, 0xdd})
        for at = 1, count do put(items[at], pieces, depth) end
        return
    end
    pieces[#pieces + 1] = header(count, 0x80, 16, {nil, 0xde, 0xdf})
    for key, value in next, items do
        put(key, pieces, depth)
        put(value, pieces, depth)
    end
end

function put(value, pieces, depth)
    local kind = type(value)
    if kind == "string" then
        pieces[#pieces + 1] = header(#value, 0xa0, 32, {0xd9, 0xda, 0xdb})
        pieces[#pieces + 1] = value
    elseif kind == "number" then
        pieces[#pieces + 1] = number_bytes(value)
    elseif kind == "boolean" then
        pieces[#pieces + 1] = value and "\195" or "\194"
    elseif kind == "table" and depth < MAX_NESTING then
        put_table(value, pieces, depth + 1)
    else
        pieces[#pieces + 1] = "\192"
    end
end

local function pack(...)
    local count = select("#", ...)
    if count == 0 then error("bad argument #0 to 'pack' (MessagePack pack needs input.)", 2) end
    local pieces = {}
    for at = 1, count do put((select(at, ...)), pieces, 0) end
    return concat(pieces)
end

-- unpacking ---------------------------------------------------------------------------------------------------

local function take(data, at, size)
    if at + size - 1 > #data then fail("Missing bytes in input.") end
    return sub(data, at, at + size - 1), at + size
end

local function number_at(data, at, code, size)
    local bytes, after = take(data, at, size)
    return number_from_bytes(code, bytes), after
end

local get

local function array_of(data, at, count)
    local array = {}
    for place = 1, count do array[place], at = get(data, at) end
    return array, at
end

local function map_of(data, at, count)
    local map = {}
    for _ = 1, count do
        local key, value
        key, at = get(data, at)
        value, at = get(data, at)
        if key == nil or key ~= key then fail("Bad data format in input.") end
        map[key] = value
    end
    return map, at
end

local numbers = {
    [0xca] = {">f", 4}, [0xcb] = {">d", 8}, [0xcc] = {">B", 1}, [0xcd] = {">H", 2}, [0xce] = {">I", 4}, [0xcf] = {">Q", 8},
    [0xd0] = {">b", 1}, [0xd1] = {">h", 2}, [0xd2] = {">i", 4}, [0xd3] = {">q", 8},
}
local sized = {
    [0xc4] = {">B", 1, take}, [0xc5] = {">H", 2, take}, [0xc6] = {">I", 4, take},
    [0xd9] = {">B", 1, take}, [0xda] = {">H", 2, take}, [0xdb] = {">I", 4, take},
    [0xdc] = {">H", 2, array_of}, [0xdd] = {">I", 4, array_of}, [0xde] = {">H", 2, map_of}, [0xdf] = {">I", 4, map_of},
}

function get(data, at)
    local mark = byte(data, at)
    if not mark then fail("Missing bytes in input.") end
    at = at + 1
    if mark < 0x80 then return mark, at end
    if mark >= 0xe0 then return mark - 256, at end
    if mark < 0x90 then return map_of(data, at, mark - 0x80) end
    if mark < 0xa0 then return array_of(data, at, mark - 0x90) end
    if mark < 0xc0 then return take(data, at, mark - 0xa0) end
    if mark == 0xc0 then return nil, at end
    if mark == 0xc2 or mark == 0xc3 then return mark == 0xc3, at end
    local form = numbers[mark]
    if form then return number_at(data, at, form[1], form[2]) end
    form = sized[mark]
    if not form then fail("Bad data format in input.") end
    local size
    size, at = number_at(data, at, form[1], form[2])
    return form[3](data, at, size)
end

local function all(data, at, limit)
    local values, count = {}, 0
    while at <= #data and count < limit do
        count = count + 1
        values[count], at = get(data, at)
    end
    return values, count, at
end

local function check_data(name, data)
    if type(data) ~= "string" then
        error("bad argument #1 to '" .. name .. "' (string expected, got " .. type(data) .. ")", 3)
    end
end

local function unpack_all(data)
    check_data("unpack", data)
    local ok, values, count = pcall(all, data, 1, 2 ^ 31)
    if not ok then error(values, 2) end
    return unpack(values, 1, count)
end

-- The offset to go on from (-1 at the end), then the values.
local function unpack_some(name, data, limit, offset)
    check_data(name, data)
    offset = offset or 0
    if offset < 0 or limit < 0 then
        error("Invalid request to unpack with offset of " .. offset .. " and limit of " .. #data .. ".", 3)
    elseif offset > #data then
        error("Start offset " .. offset .. " greater than input length " .. #data .. ".", 3)
    end
    local ok, values, count, at = pcall(all, data, offset + 1, limit)
    if not ok then error(values, 3) end
    return at > #data and -1 or at - 1, unpack(values, 1, count)
end

local function unpack_one(data, offset)
    local after, value = unpack_some("unpack_one", data, 1, offset)
    if value == nil then return after end
    return after, value
end

-- Not a tail call: an error must find the script two frames up.
local function same(...) return ... end

local function unpack_limit(data, limit, offset) return same(unpack_some("unpack_limit", data, limit or 0, offset)) end

return {
    pack = pack, unpack = unpack_all, unpack_one = unpack_one, unpack_limit = unpack_limit, _NAME = "cmsgpack",
    _VERSION = "lua-cmsgpack 0.4.0", _DESCRIPTION = "MessagePack C implementation for Lua",
}
