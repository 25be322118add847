use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
use std::io::{Read, Write};
fn main() {
    let file = std::env::args().nth(1).unwrap();
    let mut o = SymbolizerOptions::new();
    if let Some(c) = std::env::args().nth(2) {
        o = o.cache_dir(c);
    }
    let mut s = Symbolizer::new(o);
    let m = s.add_file(&file).unwrap();
    if std::env::args().nth(3).is_some() {
        let t = std::time::Instant::now();
        let ok = s.build_index(m);
        eprintln!("{ok} {:?}", t.elapsed());
        return;
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let lookups: Vec<_> = text
        .lines()
        .map(|l| {
            (
                m,
                Lookup::stated(StatedAddress::new(
                    u64::from_str_radix(l.trim_start_matches("0x"), 16).unwrap(),
                )),
            )
        })
        .collect();
    let r = s.resolve_many(&lookups);
    let texts: Vec<String> = r
        .distinct()
        .iter()
        .map(|x| {
            use std::fmt::Write;
            let mut o = String::new();
            for f in x.frames() {
                let _ = writeln!(
                    o,
                    "{}\n{}:{}:{}",
                    f.function.as_deref().unwrap_or("??"),
                    f.file.as_deref().unwrap_or("??"),
                    f.line.unwrap_or(0),
                    f.column.unwrap_or(0)
                );
            }
            if x.frames().is_empty() {
                o.push_str("??\n??:0:0\n");
            }
            o.push('\n');
            o
        })
        .collect();
    let mut out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for i in 0..r.len() {
        out.write_all(texts[r.distinct_index(i).unwrap()].as_bytes()).unwrap();
    }
}
