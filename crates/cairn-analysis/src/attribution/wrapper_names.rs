//! Judges by a function's name whether it passes memory on, or is part of a generic container.
//!
//! Names are split into words: `ngx_create_temp_buf` has `ngx`, `create`, `temp` and `buf`,
//! `StringBuilder::AppendChar` has `string`, `builder`, `append` and `char`. A name with a word
//! that is not in these lists describes the data, and the function is a good name for a row.

use super::plain_name;

/// Parts of the last component that say that a function returns new memory.
const ALLOCATIONS: &[&str] =
    &["alloc", "memalign", "strdup", "strndup", "memdup", "memndup", "strsave", "savestr", "operator new"];

/// Last words of names that say nothing else, whatever is in front.
const MALLOCS: &[&str] = &["malloc", "calloc", "realloc", "zalloc", "mallocz", "callocz", "reallocz"];

/// Words beside these that do not say which memory: `zcalloc_num`, `do_xmallocz`.
#[rustfmt::skip] // A list of words is read as a text.
const ALLOCATION_FILLERS: &[&str] = &[
    "abort", "aligned", "array", "base", "bytes", "c", "checked", "default", "die", "do", "e", "ex", "exit", "fail",
    "fast", "generic", "gently", "impl", "inner", "internal", "low", "m", "many", "n", "nothrow", "nothrows", "num",
    "or", "raw", "real", "safe", "size", "sized", "slow", "std", "sys", "throw", "try", "uninit", "usable", "with", "x",
    "z", "zero", "zeroed",
];

/// Words for strings, buffers, pools and collections.
///
/// `table`, `tree`, `set` and `node` are not here: in `create_table` and `parse_tree` they name the
/// data of the program.
#[rustfmt::skip] // As above.
const CONTAINERS: &[&str] = &[
    "arena", "arr", "array", "arraylist", "bitmap", "bitset", "bitvec", "blob", "buf", "buff", "buffer", "bytes",
    "cstr", "cstring", "deque", "dict", "dictionary", "dynbuf", "dynstr", "fifo", "hash", "hashmap",
    "hashtab", "hashtable", "list", "map", "mem", "memory", "obstack", "pool", "queue", "ring", "sbuf", "slab",
    "slice", "stack", "str", "strbuf", "string", "strlist", "vec", "vector", "wstr", "wstring", "zone",
];

/// Words for making and changing these.
#[rustfmt::skip] // As above.
const ACTIONS: &[&str] = &[
    "acquire", "add", "addbuf", "addch", "addchar", "addf", "addstr", "append", "appendf", "asprintf", "assign",
    "at", "cat", "catf", "catprintf", "clone", "concat", "copy", "cpy", "create", "dup", "duplicate", "emplace",
    "empty", "enlarge", "enqueue", "ensure", "expand", "extend", "fmt", "format", "from", "get", "grow",
    "growby", "init", "initialize", "insert", "insertf", "join", "make", "ncat", "ncpy", "new", "obtain",
    "peek", "prepare", "prepend", "printf", "push", "put", "putc", "puts", "rehash", "reinit", "replace", "reserve", "resize",
    "set", "setlen", "shrink", "sized", "snprintf", "sprintf", "store", "substr", "trim", "unshift", "vaddf", "vappendf",
    "vcatf", "vformat", "vprintf", "vsprintf", "write",
];

/// Words that add nothing.
#[rustfmt::skip] // As above.
const FILLERS: &[&str] = &[
    "a", "back", "base", "begin", "block", "builder", "by", "byte", "c", "capacity", "char", "chars", "chunk",
    "common", "count", "data", "dynamic", "elem", "element", "elements", "elt", "end", "entry", "explicit", "fast",
    "first", "for", "front", "full", "generic", "growable", "head", "impl", "in", "index", "inner", "internal",
    "it", "item", "items", "key", "large", "last", "len", "length", "linked", "lock", "locked", "lower", "max", "min",
    "more", "n", "next", "node", "nolock", "nth", "null", "object", "of", "on", "one", "or", "page", "pair", "part",
    "pod", "ptr", "ptrs", "range", "raw", "real", "room", "safe", "segment", "simple", "size", "slot", "slow", "small",
    "space", "storage", "tail", "table", "temp", "term", "tmp", "to", "uninit", "uninitialized", "unlocked", "upper",
    "utf", "value", "values", "with", "without", "writable", "x", "zero", "zeroed",
];

/// Words that look like the short name of a library, and are none.
#[rustfmt::skip] // As above.
const NO_PREFIXES: &[&str] = &["fix", "job", "key", "log", "map", "msg", "net", "obj", "out", "row", "run", "sql", "tag", "tok", "url", "use"];

/// Letters of the longest stem of a container: `sds`, `ga`, `dynb`.
const LONGEST_STEM: usize = 4;
/// Letters of the longest word in front that is taken for the short name of a library; 3: `ngx`.
const LONGEST_PREFIX: usize = 3;

/// Returns the least number of callers that make a function of this name a wrapper.
///
/// Generic containers count as wrappers. `None` where the name says more than that.
pub(super) fn least_callers(name: &str) -> Option<usize> {
    /// A name that may be that of the program's data: `alloc_table`, `make_list`.
    const OF_AMBIGUOUS: usize = 2;
    let plain = plain_name(name);
    let plain = super::evidence::without_clone(&plain);
    let last = plain.rsplit("::").next().unwrap_or(plain);
    let lower = last.to_ascii_lowercase();
    if lower.contains("dealloc") || lower.contains("free") {
        return None;
    }
    let of_last = words(last);
    let allocates = |word: &str| word == "dup" || ALLOCATIONS.iter().any(|part| word.contains(part));
    if allocates(&lower) || of_last.iter().any(|word| allocates(word)) {
        let is_filler =
            |word: &String| allocates(word) || has(ALLOCATION_FILLERS, word) || has(CONTAINERS, word);
        let is_pure = without_prefix(&of_last).iter().all(is_filler);
        // `contextMalloc` is called so because it is malloc for its callers.
        let is_malloc = of_last.last().is_some_and(|word| has(MALLOCS, word));
        return Some(if is_pure || is_malloc { 1 } else { OF_AMBIGUOUS });
    }
    if is_member_of_template(name) && is_constructor_or_action(plain, &of_last) {
        return Some(OF_AMBIGUOUS);
    }
    // Outer scopes are namespaces: the class and the function decide.
    let scope = plain.rsplit("::").nth(1).filter(|scope| scope.starts_with(|c: char| c.is_uppercase()));
    let all: Vec<String> = scope.map_or_else(Vec::new, words).into_iter().chain(of_last).collect();
    is_generic(&all).then(|| if is_method_of_container(&all) { 1 } else { OF_AMBIGUOUS })
}

fn has(list: &[&str], word: &str) -> bool {
    list.contains(&word)
}

fn is_container(word: &str) -> bool {
    // `evbuffer`, `ptrarray`.
    let ends =
        |part: &&str| part.len() >= 5 && word.ends_with(part) && word.len() - part.len() <= LONGEST_PREFIX;
    has(CONTAINERS, word) || CONTAINERS.iter().any(ends)
}

fn is_known(word: &str) -> bool {
    is_container(word) || has(ACTIONS, word) || has(FILLERS, word)
}

/// True for a word that may be the short name of a library.
fn is_prefix(word: &str) -> bool {
    let is_allocation = ALLOCATIONS.iter().any(|part| word.contains(part));
    !is_known(word) && !is_allocation && word.len() <= LONGEST_PREFIX && !has(NO_PREFIXES, word)
}

/// The words behind the short name of a library in front.
fn without_prefix(words: &[String]) -> &[String] {
    match words {
        [prefix, rest @ ..] if is_prefix(prefix) => rest,
        all => all,
    }
}

/// True when all words are generic, but for the short name of a library in front.
fn is_generic(words: &[String]) -> bool {
    let rest = without_prefix(words);
    let has_container = rest.iter().any(|word| is_container(word));
    let has_action = rest.iter().any(|word| has(ACTIONS, word));
    // `jv_string` makes one.
    let is_whole = rest.len() == 1 && words.len() == 2;
    has_container && (has_action || is_whole) && rest.iter().all(|word| is_known(word))
}

/// True for names that begin with a library or a container: `ngx_list_init`, `string_list_append`.
fn is_method_of_container(words: &[String]) -> bool {
    let Some(first) = words.first() else { return false };
    let containers = words.iter().filter(|word| is_container(word)).count();
    is_prefix(first) || (is_container(first) && containers > 1)
}

/// The short name of a container at the beginning of a name without borders: `sds` of `_sdsnewlen`.
///
/// The rest consists of actions and fillers.
pub(super) fn stem(name: &str) -> Option<String> {
    let glued = glued(name)?;
    (2..=LONGEST_STEM.min(glued.len()))
        .find(|&length| consists_of_known_words(&glued[length..]))
        .map(|length| glued[..length].to_owned())
        .filter(|stem| !is_known(stem) && !has(NO_PREFIXES, stem))
}

/// True for `sdsMakeRoomFor`, where `sds` is the stem of a container.
pub(super) fn has_stem(name: &str, stem: &str) -> bool {
    let rest = glued(name).and_then(|glued| glued.strip_prefix(stem).map(str::to_owned));
    rest.is_some_and(|rest| consists_of_known_words(&rest))
}

/// The letters of a name of C.
fn glued(name: &str) -> Option<String> {
    let name = super::evidence::without_clone(name);
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let letters = name.chars().filter(char::is_ascii_alphabetic).map(|c| c.to_ascii_lowercase());
    is_plain.then(|| letters.collect())
}

/// True when a text is made of known words, and one of them is an action.
fn consists_of_known_words(text: &str) -> bool {
    // For each position: whether words reach it, without an action and with one.
    let mut reached = vec![[false, false]; text.len() + 1];
    reached[0][0] = true;
    for start in 0..text.len() {
        for has_action in [false, true] {
            if !reached[start][usize::from(has_action)] {
                continue;
            }
            for (list, is_action) in [(CONTAINERS, false), (ACTIONS, true), (FILLERS, false)] {
                let fits = |word: &&&str| word.len() > 1 && text[start..].starts_with(**word);
                for word in list.iter().filter(fits) {
                    reached[start + word.len()][usize::from(has_action || is_action)] = true;
                }
            }
        }
    }
    reached[text.len()][1]
}

/// True for `List<Order>::push`: the code is the same for all types.
fn is_member_of_template(name: &str) -> bool {
    // `<Order as Clone>::clone` is a method of one type.
    if name.starts_with('<') {
        return false;
    }
    let mut depth = 0_u32;
    let mut previous = ' ';
    let mut is_member = false;
    for (at, c) in name.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && !name[at..].starts_with("(anonymous") => break,
            ' ' if depth == 0 => is_member = false,
            ':' if depth == 0 && previous == '>' => is_member = true,
            _ => {}
        }
        previous = c;
    }
    is_member
}

/// True for the constructor of a class, and for a function whose first word is an action.
fn is_constructor_or_action(plain: &str, words_of_last: &[String]) -> bool {
    let mut scopes = plain.rsplit("::");
    let (last, class) = (scopes.next(), scopes.next());
    let is_action = words_of_last.first().is_some_and(|word| has(ACTIONS, word));
    is_action || (class.is_some() && last == class) || last.is_some_and(|last| last.starts_with("operator"))
}

/// The words of a part of a name, in lower case; digits at their ends are left out.
fn words(part: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let letters: Vec<char> = part.chars().collect();
    for (at, &c) in letters.iter().enumerate() {
        let previous = at.checked_sub(1).map(|at| letters[at]);
        let next = letters.get(at + 1);
        // `AppendChar`, `QString`, `TArray`.
        let is_start = c.is_uppercase()
            && previous.is_some_and(|previous| {
                previous.is_lowercase()
                    || (previous.is_uppercase() && next.is_some_and(|next| next.is_lowercase()))
            });
        if is_start || !c.is_alphabetic() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphabetic() {
            word.extend(c.to_lowercase());
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_functions_return() {
        let cases = [
            (
                Some(1),
                "zmalloc jv_mem_alloc my_strdup xCalloc ngx_memalign str_dup my_malloc.constprop.0 zcalloc_num \
                 do_xmallocz pool_alloc ngx_create_pool ngx_list_init jv_string_sized jv_string QString::resize \
                 hash_map_insert buffer_slab_at_peek Arena::AllocateAligned contextMalloc vim_strsave",
            ),
            (
                Some(2),
                "alloc_table strbuf_grow strbuf_addf evbuffer_add make_list \
                 Buffer::Grow StringBuilder::Append listAddNodeTail dynbuf_append SplitVector<char>::Insert \
                 Table<int>::Table ns::Array<ns::Item*>::push_back get_string_buffer",
            ),
            (
                None,
                "main dealloc_all alloc::load new_order parse_string found_string set_commit_buffer FlagMap::new \
                 create_table tasklist_add framebuffer_create emit_hunk_header ngx_output_chain_get_buf build_list \
                 std::vector<my_alloc>::size read_buffer LineVector::InsertLines order_list_add log_buffer_init \
                 list map push Tree<int>::balance free_list_grow <Order>::clone",
            ),
        ];
        for (least, names) in cases {
            for name in names.split_whitespace() {
                assert_eq!(least_callers(name), least, "{name}");
            }
        }
        let operator = "Pool<A, (anonymous namespace)::B>::operator=(Pool const&)";
        assert_eq!(least_callers(operator), Some(2));
        assert_eq!(least_callers("std::vector<my_alloc>::push_back(int)"), Some(2));
        assert_eq!(least_callers("List<int> load_numbers(char const*)"), None);
        assert_eq!(least_callers("<Vec<Order> as core::clone::Clone>::clone"), None);
    }

    #[test]
    fn stems_are_short_names_of_containers() {
        for (name, expected) in [
            ("_sdsnewlen", Some("sds")),
            ("ga_grow", Some("ga")),
            ("load_file", None),
            ("get", None),
            ("main", None),
        ] {
            assert_eq!(stem(name).as_deref(), expected, "{name}");
        }
        assert!(has_stem("sdsMakeRoomFor", "sds") && has_stem("sdsResize", "sds"));
        assert!(
            !has_stem("sdssplitargs", "sds") && !has_stem("sds", "sds") && !has_stem("ns::sdsnew", "sds")
        );
    }
}
