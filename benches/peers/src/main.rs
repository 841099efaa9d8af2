//! Compares this crate with its peers, and with what the machine allows, in one process.
//!
//! In the repository, `cargo bench --bench peers` runs everything, `-- --quick` a smoke test, and `-- SECTION…` some
//! sections. Compare ratios within a table, whose subjects take turns, rather than runs.
//!
//! For callgrind, `peers decide SUBJECT LOAD DECISIONS` only decides, `peers call SUBJECT CASE REQUESTS` only calls an
//! application, and `peers ask URL LIMITS TOGETHER DECISIONS` only decides on Redis. The cost is the difference
//! between twice as many and as many. `peers wait` checks that the clock advances.

mod admission;
mod algorithms;
mod allocator;
mod app;
mod attack;
mod decisions;
mod floors;
mod growth;
mod keys;
mod layers;
mod memory;
mod only;
mod peers;
mod quota;
mod race;
mod recorded;
mod redis;
mod scale;
mod server;
mod spread;
mod subject;
mod table;

use scale::Scale;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

type Section = (&'static str, fn(&Scale));

const SECTIONS: [Section; 9] = [
    ("decisions", decisions::compare),
    ("memory", memory::compare),
    ("attack", attack::compare),
    ("layers", layers::compare),
    ("server", server::compare),
    ("redis", redis::compare),
    ("leases", redis::leases::compare),
    ("admission", admission::compare),
    ("growth", growth::compare),
];

fn main() {
    // Some peers spawn clean-up tasks, which have nothing to do here.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["decide", subject, load, decisions] => only::decide(subject, load, decisions.parse().expect("a number")),
        ["call", subject, case, requests] => only::call(subject, case, requests.parse().expect("a number")),
        ["ask", url, limits, together, decisions] => {
            let [limits, together, decisions] =
                [limits, together, decisions].map(|text| text.parse().expect("a number"));
            runtime.block_on(only::ask(url, limits, together, decisions));
        }
        ["wait"] => only::wait(),
        _ => compare(&arguments),
    }
}

fn compare(arguments: &[&str]) {
    let (options, names): (Vec<&str>, Vec<&str>) = arguments.iter().partition(|name| name.starts_with("--"));
    let scale = match options[..] {
        [] => Scale::FULL,
        ["--quick"] => Scale::QUICK,
        _ => panic!("the only option is --quick, and not {options:?}"),
    };
    let known = SECTIONS.map(|(name, _)| name);
    for name in &names {
        assert!(known.contains(name), "{name} is none of {known:?}");
    }
    println!("# tower-ratelimit beside its peers");
    if scale.quick {
        println!("\nA smoke test: these figures mean little.");
    }
    for (name, section) in SECTIONS {
        if names.is_empty() || names.contains(&name) {
            eprintln!("peers: {name}");
            section(&scale);
        }
    }
}
