//! quick
use std::hint::black_box;
use std::time::Instant;
#[inline(never)]
fn go<const N: u32>(depth: u32, f: &mut dyn FnMut()) -> u32 {
    if depth == 0 {
        f();
        return N;
    }
    let r = match N {
        0 => go::<1>(depth - 1, f),
        1 => go::<2>(depth - 1, f),
        2 => go::<3>(depth - 1, f),
        _ => go::<0>(depth - 1, f),
    };
    black_box(r) + 1
}
fn main() {
    for depth in [10u32, 30, 100] {
        let mut best = f64::MAX;
        let mut frames = 0;
        go::<0>(depth, &mut || {
            frames = cairn_capture::capture().frames().count();
            for _ in 0..200 {
                let t = Instant::now();
                for _ in 0..2000 {
                    black_box(cairn_capture::capture());
                }
                best = best.min(t.elapsed().as_nanos() as f64 / 2000.0);
            }
        });
        println!("{frames} frames: {best:.1} ns  {:.2} ns/frame", best / frames as f64);
    }
    // varying leaf
    let mut frames = 0usize;
    let mut n = 0usize;
    let t = Instant::now();
    let mut x = 88172645463325252u64;
    for _ in 0..300000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        go::<0>(12 + (x >> 60) as u32, &mut || {
            let s = cairn_capture::capture();
            n += 1;
            black_box(s);
        });
    }
    let a = t.elapsed();
    let t = Instant::now();
    for _ in 0..300000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        go::<0>(12 + (x >> 60) as u32, &mut || {
            n += 1;
            black_box(());
        });
    }
    let b = t.elapsed();
    println!("varying: {:.1} ns", (a.as_nanos() as f64 - b.as_nanos() as f64) / 300000.0);
}
