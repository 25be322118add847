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
    "abort", "aligned", "array", "base", "bool", "bytes", "c", "char", "checked", "default", "die", "do", "double", "e", "ex", "exit", "fail",
    "fast", "float", "generic", "gently", "impl", "inner", "int", "internal", "long", "low", "m", "many", "n", "nothrow", "nothrows", "num",
    "or", "raw", "re", "real", "safe", "size", "sized", "slow", "std", "sys", "throw", "try", "uint", "uninit", "usable", "with", "x",
    "z", "zero", "zeroed",
];

/// Words for strings, buffers, pools and collections.
///
/// `table`, `tree`, `set` and `node` are not here: in `create_table` and `parse_tree` they name the
/// data of the program.
#[rustfmt::skip] // As above.
const CONTAINERS: &[&str] = &[
    "arena", "arr", "array", "arraylist", "avl", "bitmap", "bitset", "bitvec", "blob", "bst", "btree", "buf",
    "buff", "buffer", "bytes", "charbuf", "cstr", "cstring", "darray", "deque", "dict", "dictionary", "dlist",
    "dstr", "dstring", "dynarr", "dynarray", "dynbuf", "dynstr", "fifo", "hash", "hashmap", "hashtab", "hashtable",
    "htab", "iobuf", "list", "llist", "map", "mem", "membuf", "memory", "obstack", "parray", "pool", "queue",
    "rbtree", "ring", "sbuf", "skiplist", "slab", "slice", "slist", "splay", "stack", "str", "strarr", "strarray",
    "strbuf", "strbuilder", "string", "stringbuf", "stringlist", "strlist", "strvec", "trie", "vbuf", "vec",
    "vector", "vstr", "vstring", "wstr", "wstring", "zone",
];

/// Containers that functions such as `buffer_append_iovec` are methods of, whatever they add.
#[rustfmt::skip] // As above.
const GROWING: &[&str] = &[
    "arr", "array", "buf", "buffer", "bytes", "dynarray", "dynbuf", "dynstr", "hash", "hashmap", "hashtab", "hashtable",
    "htab", "list", "llist", "membuf", "queue", "sbuf", "slist", "stack", "str", "strbuf", "string", "stringbuf",
    "strlist", "strvec", "vec", "vector",
];

/// Those of them that are filled by looking a key up.
const HASH_TABLES: &[&str] = &["hash", "hashmap", "hashtab", "hashtable", "htab"];

/// Words for making these longer.
#[rustfmt::skip] // As above.
const ADDITIONS: &[&str] = &[
    "add", "addf", "addstr", "append", "appendf", "cat", "catf", "concat", "emplace", "ensure", "enqueue", "extend",
    "grow", "insert", "prepend", "push", "put", "reserve", "resize", "vappendf",
];

/// Functions of the C library that make strings, as the last word of a program's own ones.
const STRING_FUNCTIONS: &[&str] =
    &["getline", "getdelim", "getstr", "strcat", "strncat", "strcpy", "strncpy", "strjoin"];

/// Words of classes that hand out memory, beside containers: `MemoryManager`, `HeapRegion`.
const ALLOCATOR_CLASSES: &[&str] =
    &["allocator", "heap", "manager", "allocation", "malloc", "region", "root", "system", "context"];

/// Words of class templates that hold anything, beside containers; without a type they name data.
const TEMPLATES: &[&str] =
    &["set", "table", "tree", "trie", "heap", "matrix", "optional", "ptr", "pointer", "repeated"];

/// Words for the pointers that functions such as `make_unique` return.
const POINTERS: &[&str] = &[
    "counted",
    "handle",
    "intrusive",
    "owned",
    "rc",
    "ref",
    "refcounted",
    "scoped",
    "shared",
    "strong",
    "unique",
];

/// Words for making and changing these.
#[rustfmt::skip] // As above.
const ACTIONS: &[&str] = &[
    "acquire", "add", "addbuf", "addch", "addchar", "addf", "addstr", "append", "appendf", "asprintf", "assign",
    "at", "bump", "cat", "catf", "catprintf", "clone", "concat", "copy", "cpy",
    "create", "double", "dup", "duplicate", "emplace", "empty", "enlarge", "enqueue", "ensure", "enter",
    "expand", "extend", "fmt", "format", "from", "get", "grow", "growby", "increase", "init", "initialize",
    "insert", "insertf", "join", "lengthen", "make", "merge", "move", "ncat", "ncpy", "need", "new", "obtain",
    "peek", "prep", "prepare", "prepend", "printf", "push", "put", "putc", "puts", "reallocate", "recreate",
    "rehash", "reinit", "replace", "require", "reserve", "resize", "set", "setlen", "setsize", "shrink", "sized",
    "snprintf", "sprintf", "store", "substr", "swap", "transfer", "trim", "unshift", "vaddf", "vappendf", "vcatf",
    "vformat", "vprintf", "vsprintf", "want", "widen", "write",
];

/// Words that add nothing.
#[rustfmt::skip] // As above.
const FILLERS: &[&str] = &[
    "a", "absent", "after", "all", "any", "auto", "available", "back", "base", "before",
    "begin", "block", "bool", "bucket", "builder", "bulk", "by", "byte", "c", "capa", "capacity", "char",
    "chars", "chunk", "common", "count", "data", "dynamic", "elem", "element", "elements", "elt", "end",
    "entry", "exact", "exists", "explicit", "extra", "fast", "first", "fixed", "float", "for", "front", "full",
    "generic", "growable", "growing", "head", "if", "impl", "in", "index", "inner", "int", "internal", "it",
    "item", "items", "key", "large", "last", "len", "length", "linked", "lock", "locked", "long",
    "lower", "many", "max", "maybe", "min", "minimum", "more", "multi", "n", "next", "node", "nolock", "nonempty",
    "nth", "null", "object", "of", "on", "one", "or", "page", "pair", "part", "pod", "prev", "ptr", "ptrs",
    "range", "raw", "real", "room", "safe", "segment", "simple", "single", "size", "slot", "slow", "small",
    "sorted", "space", "storage", "table", "tail", "temp", "term", "tmp", "to", "tree", "uint", "uninit",
    "uninitialized", "unique", "unlocked", "unsigned", "upper", "utf", "value", "values", "void",
    "with", "without", "writable", "x", "zero", "zeroed",
];

/// Words that are no short names of libraries.
#[rustfmt::skip] // As above.
const NO_PREFIXES: &[&str] = &[
    "build", "check", "compile", "compute", "convert", "decode", "do", "dump", "emit", "encode", "eval", "exec",
    "find", "finish", "fix", "generate", "handle", "is", "job", "key", "load", "log", "lookup", "main", "map", "match",
    "msg", "net", "obj", "open", "out", "parse", "print", "process", "read", "recv", "row", "run", "save", "scan",
    "search", "send", "setup", "show", "split", "sql", "start", "tag", "test", "tok", "update", "url", "use", "visit",
];

/// Functions of a module that begin with a word that is its short name, and their share.
///
/// 5 and a quarter: all of cmark's begin with `cmark`, while verbs such as `find` are rarer.
const LEAST_OF_PREFIX: usize = 5;
const LEAST_SHARE_OF_PREFIX: f64 = 0.25;

/// Letters of the longest stem of a container: `sds`, `ga`, `dynb`.
const LONGEST_STEM: usize = 4;
/// Letters of the longest word in front that is taken for the short name of a library; 3: `ngx`.
const LONGEST_PREFIX: usize = 3;

/// Returns the least number of callers that make a function of this name a wrapper.
///
/// Generic containers count as wrappers. `None` where the name says more than that.
pub(super) fn least_callers(name: &str, prefixes: &Prefixes) -> Option<usize> {
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
    if last.starts_with("operator new") || is_string_function(&of_last) {
        return Some(1);
    }
    let is_of_template = is_member_of_template(name);
    // `Scintilla::SplitVector<int>::RoomFor`: all methods of a container serve any data.
    let is_container_class =
        |class: &str| words(class).iter().any(|word| is_container(word) || has(TEMPLATES, word));
    if is_of_template && plain.rsplit("::").nth(1).is_some_and(is_container_class) {
        return Some(1);
    }
    // Outer scopes are namespaces: the class and the function decide.
    let scope = plain.rsplit("::").nth(1).filter(|scope| scope.starts_with(|c: char| c.is_uppercase()));
    let of_class = scope.map_or_else(Vec::new, words);
    let allocates = |word: &str| word == "dup" || ALLOCATIONS.iter().any(|part| word.contains(part));
    if allocates(&lower) || of_last.iter().any(|word| allocates(word)) {
        let is_filler =
            |word: &String| allocates(word) || has(ALLOCATION_FILLERS, word) || has(CONTAINERS, word);
        let is_pure = prefixes.without(&of_last).iter().all(is_filler);
        // `Document::Allocate` makes room for a document, `Arena::Allocate` for anything.
        let is_of_allocator = of_class
            .iter()
            .all(|word| is_filler(word) || is_known(word) || is_prefix(word) || has(ALLOCATOR_CLASSES, word));
        // `contextMalloc` is called so because it is malloc for its callers.
        let is_malloc = of_last.last().is_some_and(|word| has(MALLOCS, word));
        return Some(if (is_pure && is_of_allocator) || is_malloc { 1 } else { OF_AMBIGUOUS });
    }
    if is_template_function(name) && makes_pointer(&of_last) {
        return Some(1);
    }
    if is_of_template && is_constructor_or_action(plain, &of_last) {
        return Some(OF_AMBIGUOUS);
    }
    // `Hash_Table::Hash_Table` allocates the slots of any table.
    let is_constructor = !of_class.is_empty() && of_class == of_last;
    if is_constructor
        && of_class.iter().any(|word| is_container(word))
        && of_class.iter().all(|word| is_known(word))
    {
        return Some(1);
    }
    // `growstackblock` is `grow_stack_block`.
    let of_last = match &*of_last {
        [glued] if of_class.is_empty() => known_words(glued).unwrap_or(of_last),
        _ => of_last,
    };
    let all: Vec<String> = of_class.into_iter().chain(of_last).collect();
    if adds_to_container(&all, prefixes) {
        return Some(1);
    }
    is_generic(&all, prefixes).then(|| if is_method_of_container(&all, prefixes) { 1 } else { OF_AMBIGUOUS })
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

/// Words in front of the names of a module's functions: `cmark` of `cmark_strbuf_grow`.
#[derive(Clone, Default, Debug)]
pub(super) struct Prefixes {
    of_module: Vec<String>,
}

impl Prefixes {
    /// Collects the prefixes of a module with this file and these functions.
    pub(super) fn of_module<'n>(path: &str, functions: impl IntoIterator<Item = &'n str>) -> Self {
        let file = path.rsplit('/').next().unwrap_or(path);
        let file = words(file.strip_prefix("lib").unwrap_or(file));
        let mut all = 0;
        let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
        for name in functions {
            all += 1;
            let first = words(name).into_iter().next().filter(|_| !name.contains("::"));
            first.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
        }
        let is_common =
            |count: usize| count >= LEAST_OF_PREFIX && count as f64 >= all as f64 * LEAST_SHARE_OF_PREFIX;
        let common = counts.into_iter().filter(|(_, count)| is_common(*count)).map(|(word, _)| word);
        let may_be = |word: &String| word.len() > 1 && !is_known(word) && !has(NO_PREFIXES, word);
        Self { of_module: file.into_iter().take(1).chain(common).filter(may_be).collect() }
    }

    fn has(&self, word: &str) -> bool {
        is_prefix(word) || self.of_module.iter().any(|prefix| prefix == word)
    }

    /// The words behind the short name of a library in front.
    fn without<'w>(&self, words: &'w [String]) -> &'w [String] {
        match words {
            [prefix, rest @ ..] if self.has(prefix) => rest,
            all => all,
        }
    }
}

/// True when all words are generic, but for the short name of a library in front.
fn is_generic(words: &[String], prefixes: &Prefixes) -> bool {
    let rest = prefixes.without(words);
    let has_container = rest.iter().any(|word| is_container(word));
    let has_action = rest.iter().any(|word| has(ACTIONS, word));
    // `jv_string` makes one.
    let is_whole = rest.len() == 1 && words.len() == 2 && is_prefix(&words[0]);
    has_container && (has_action || is_whole) && rest.iter().all(|word| is_known(word))
}

/// True for `buffer_append_iovec`: the container comes first, and anything behind the addition.
fn adds_to_container(words: &[String], prefixes: &Prefixes) -> bool {
    let rest = prefixes.without(words);
    let containers = rest.iter().take_while(|word| has(GROWING, word)).count();
    // `htab_find_slot` makes the slot.
    let finds = |word: &str| matches!(word, "enter" | "find" | "lookup" | "search");
    let is_table = rest.first().is_some_and(|word| has(HASH_TABLES, word));
    let is_action = |word: &String| has(ADDITIONS, word) || (is_table && finds(word));
    containers > 0 && rest.get(containers).is_some_and(is_action)
}

/// True for `nasm_strcat` and `vaxprintf`: the program's own form of a function of the C library.
fn is_string_function(words: &[String]) -> bool {
    let Some(last) = words.last() else { return false };
    words.len() <= 2 && (has(STRING_FUNCTIONS, last) || last.ends_with("printf"))
}

/// True for names that begin with a library or a container: `ngx_list_init`, `string_list_append`.
fn is_method_of_container(words: &[String], prefixes: &Prefixes) -> bool {
    let Some(first) = words.first() else { return false };
    let containers = words.iter().filter(|word| is_container(word)).count();
    prefixes.has(first) || (is_container(first) && containers > 1)
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

/// The known words that a text is made of, two or more of at least two letters.
fn known_words(text: &str) -> Option<Vec<String>> {
    // For each position: the start of the last word before it, if words reach it.
    let mut reached: Vec<Option<usize>> = vec![None; text.len() + 1];
    for end in 1..=text.len() {
        reached[end] = (0..end).find(|&start| {
            let is_word = text.get(start..end).is_some_and(|word| word.len() > 1 && is_known(word));
            is_word && (start == 0 || reached[start].is_some())
        });
    }
    let mut ends = vec![text.len()];
    while let Some(&end) = ends.last().filter(|&&end| end > 0) {
        ends.push(reached[end]?);
    }
    let words = ends.windows(2).rev().map(|pair| text[pair[1]..pair[0]].to_owned());
    (ends.len() > 2).then(|| words.collect())
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

/// True for `make_ref<Order>(int)`: the caller states the type.
fn is_template_function(name: &str) -> bool {
    let mut depth = 0_u32;
    let mut previous = ' ';
    for (at, c) in name.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && !name[at..].starts_with("(anonymous") => return previous == '>',
            _ => {}
        }
        previous = c;
    }
    false
}

/// True for `make_ref` and `NewScopedObject`, which make one object of a stated type.
fn makes_pointer(words: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    matches!(&**first, "make" | "new" | "create" | "construct")
        && rest.iter().all(|word| has(POINTERS, word) || has(FILLERS, word))
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
                 hash_map_insert buffer_slab_at_peek Arena::AllocateAligned contextMalloc vim_strsave \
                 SplitVector<char>::Insert SplitVector<int>::RoomFor SplitVector<int>::ReAllocate ns::Array<ns::Item*>::push_back \
                 Table<int>::Table Tree<int>::balance MemoryManager::Allocate ns::Object::operator~new nasm_strcat vaxprintf str_vprintf \
                 strbuf_grow strbuf_addf Buffer::Grow listAddNodeTail dynbuf_append buffer_append_iovec \
                 htab_find_slot_with_hash Bool_Array::Bool_Array                  my_list_push_front_row memory_alloc_aligned_int32_array",
            ),
            (
                Some(2),
                "alloc_table growstackblock growstackto newlist evbuffer_add make_list StringBuilder::Append get_string_buffer Document::Allocate CellBuffer::Allocate Holder<int>::Holder",
            ),
            (
                None,
                "main dealloc_all alloc::load new_order parse_string found_string set_commit_buffer FlagMap::new \
                 create_table tasklist_add framebuffer_create emit_hunk_header ngx_output_chain_get_buf build_list \
                 read_buffer LineVector::InsertLines order_list_add log_buffer_init \
                 list map push memory_add_region buffer_load_iovec FlagMap::FlagMap growth addorder sizebuf Holder<int>::balance free_list_grow <Order>::clone",
            ),
        ];
        for (least, names) in cases {
            for name in names.split_whitespace() {
                assert_eq!(least_callers(&name.replace('~', " "), &Prefixes::default()), least, "{name}");
            }
        }
        let operator = "Pool<A, (anonymous namespace)::B>::operator=(Pool const&)";
        assert_eq!(least_callers(operator, &Prefixes::default()), Some(1));
        assert_eq!(least_callers("std::vector<my_alloc>::push_back(int)", &Prefixes::default()), Some(1));
        let pointer = "std::unique_ptr<Order> shop::make_ref<Order, int>(int&&)";
        assert_eq!(least_callers(pointer, &Prefixes::default()), Some(1));
        assert_eq!(least_callers("shop::make_orders<int>(int)", &Prefixes::default()), None);
        assert_eq!(least_callers("List<int> load_numbers(char const*)", &Prefixes::default()), None);
        assert_eq!(least_callers("<Vec<Order> as core::clone::Clone>::clone", &Prefixes::default()), None);
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
