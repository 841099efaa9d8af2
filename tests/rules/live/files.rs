//! Watched files. Tokio's clock is paused.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use tokio::runtime::Handle;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Event, LiveLimits, RateLimitLayer};

use crate::live::{app, left};
use support::redis_server::Folder;
use support::store_fixture::visit;

/// A watched file, its limits, and the reported events.
struct Watched {
    folder: Folder,
    path: String,
    rules: LiveLimits,
    app: Router,
    reported: Arc<Mutex<Vec<String>>>,
}

fn yaml(name: &str, requests: u32) -> String {
    let limit = format!("rate_limit: {{ name: {name}, unit: day, requests_per_unit: {requests} }}");
    format!("domain: shop\ndescriptors:\n- {{ key: header.x-user, {limit} }}\n")
}

impl Watched {
    fn start(text: &str) -> Self {
        let folder = Folder::new();
        let path = folder.write("limits.yaml", text);
        Self::at(folder, path)
    }

    fn at(folder: Folder, path: String) -> Self {
        let reported: Arc<Mutex<Vec<String>>> = Arc::default();
        let (report, within) = (reported.clone(), format!("{}/", folder.path().display()));
        let rules = rules::watch(&path, Extractors::new()).unwrap().observe(move |event| {
            report.lock().unwrap().push(match event {
                Event::LimitsRejected { error, .. } => format!("rejected: {}", error.to_string().replace(&within, "")),
                other => format!("{other:?}"),
            });
        });
        let app = app(RateLimitLayer::live_builder(&rules).build());
        Self { folder, path, rules, app, reported }
    }

    /// Returns the events within a few seconds, and the limit at the end.
    async fn later(&self) -> (Vec<String>, String) {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let reported = std::mem::take(&mut *self.reported.lock().unwrap());
        (reported, self.limits().await)
    }

    async fn limits(&self) -> String {
        let answer = visit(&self.app, "/", "ann").await;
        left(&answer).iter().map(|(name, left)| format!("{name} {left}")).collect::<Vec<_>>().join(", ")
    }
}

const REPLACED: &str = "LimitsReplaced { limits: 1 }";

#[tokio::test(start_paused = true)]
async fn a_file_is_reloaded_when_it_changes() {
    let watched = Watched::start(&yaml("a", 9));
    assert_eq!(watched.limits().await, "a 8");
    assert_eq!(watched.later().await, (vec![], "a 7".to_owned()));
    fs::write(&watched.path, yaml("a", 20)).unwrap();
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "a 17".to_owned()));
    // With the same length and modification time as the previous one.
    let modified = fs::metadata(&watched.path).unwrap().modified().unwrap();
    fs::write(&watched.path, yaml("b", 20)).unwrap();
    fs::File::open(&watched.path).unwrap().set_modified(modified).unwrap();
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "b 19".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_file_changes_nothing_and_is_reported_once() {
    let watched = Watched::start(&yaml("a", 9));
    fs::write(&watched.path, "domain: shop\ndescriptors: 5\n").unwrap();
    let rejected = "rejected: limits.yaml:2:14: `descriptors` is \"5\": write a list, with a dash before each item";
    assert_eq!(watched.later().await, (vec![rejected.to_owned()], "a 8".to_owned()));
    assert_eq!(watched.later().await, (vec![], "a 7".to_owned()));
    fs::write(&watched.path, "domain: shop\ndescriptors: 6\n").unwrap();
    assert_eq!(watched.later().await, (vec![rejected.replace('5', "6")], "a 6".to_owned()));
    // A file that can be parsed, but not applied, changes nothing, either.
    let rule = |number| format!("- {{ key: header.h{number}, rate_limit: {{ unit: day, requests_per_unit: 9 }} }}\n");
    let many: String = (0..65).map(rule).collect();
    fs::write(&watched.path, format!("domain: shop\ndescriptors:\n{many}")).unwrap();
    let rejected = "rejected: limits.yaml: 65 limits for one request are too many: use at most 64";
    assert_eq!(watched.later().await, (vec![rejected.to_owned()], "a 5".to_owned()));
    fs::write(&watched.path, yaml("a", 9)).unwrap();
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "a 4".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_too_small_for_a_route_is_rejected_with_its_position() {
    let watched = Watched::start(&yaml("a", 9));
    let route = RateLimitLayer::live_builder(&watched.rules).build().cost(5);
    fs::write(&watched.path, yaml("a", 4)).unwrap();
    let (reported, limits) = watched.later().await;
    assert_eq!((reported.len(), limits.as_str()), (1, "a 8"), "{reported:?}");
    let rejected = "rejected: limits.yaml:3:37: a cost of 5 can never pass the limit \"a\", which holds 4: lower the cost, \
                   raise the limit, or set its field `cost`";
    assert_eq!(reported[0], rejected);
    drop(route);
}

#[tokio::test(start_paused = true)]
async fn a_file_may_be_replaced_and_deleted_and_return() {
    let watched = Watched::start(&yaml("a", 9));
    let next = watched.folder.write("next", yaml("b", 9));
    fs::rename(next, &watched.path).unwrap();
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "b 8".to_owned()));
    fs::remove_file(&watched.path).unwrap();
    let (reported, limits) = watched.later().await;
    assert_eq!((reported.len(), limits.as_str()), (1, "b 7"), "{reported:?}");
    assert!(reported[0].starts_with("rejected: limits.yaml: the file can't be read: "), "{reported:?}");
    assert_eq!(watched.later().await, (vec![], "b 6".to_owned()));
    watched.folder.write("limits.yaml", yaml("c", 9));
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "c 8".to_owned()));
}

/// A partially written file may be valid, with fewer limits.
#[tokio::test(start_paused = true)]
async fn a_partially_written_file_is_not_loaded() {
    let watched = Watched::start(&yaml("a", 9));
    let more = "- { key: header.x-user, value: '*n', rate_limit: { name: b, unit: day, requests_per_unit: 9 } }\n";
    fs::write(&watched.path, yaml("half", 9)).unwrap();
    // The watcher reads the file each second, and again shortly after a change.
    tokio::time::sleep(Duration::from_millis(1_025)).await;
    fs::write(&watched.path, yaml("half", 9) + more).unwrap();
    assert_eq!(watched.later().await, (vec!["LimitsReplaced { limits: 2 }".to_owned()], "b 8".to_owned()));
}

/// As in Kubernetes: the file is a link into a folder that is itself a link, which is replaced.
#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn a_symbolic_link_may_be_switched() {
    use std::os::unix::fs::symlink;

    let folder = Folder::new();
    let root = folder.path().to_owned();
    for (name, text) in [("one", yaml("a", 9)), ("two", yaml("b", 9))] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("limits.yaml"), text).unwrap();
    }
    symlink("one", root.join("data")).unwrap();
    symlink("data/limits.yaml", root.join("limits.yaml")).unwrap();
    let watched = Watched::at(folder, root.join("limits.yaml").to_str().unwrap().to_owned());
    assert_eq!(watched.limits().await, "a 8");
    symlink("two", root.join("next")).unwrap();
    fs::rename(root.join("next"), root.join("data")).unwrap();
    assert_eq!(watched.later().await, (vec![REPLACED.to_owned()], "b 8".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_stops_when_its_limits_are_dropped() {
    let before = Handle::current().metrics().num_alive_tasks();
    let watched = Watched::start(&yaml("a", 9));
    let tasks = || Handle::current().metrics().num_alive_tasks() - before;
    let Watched { rules, app, folder, .. } = watched;
    drop(rules);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(tasks(), 1, "a service still uses the limits");
    drop(app);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(tasks(), 0);
    drop(folder);
}

#[tokio::test]
async fn a_file_that_is_invalid_at_the_start_is_an_error() {
    let folder = Folder::new();
    let path = folder.write("limits.yaml", "domain: shop\ndescriptors: 5");
    assert!(rules::watch(&path, Extractors::new()).unwrap_err().to_string().contains("limits.yaml:2:14: "));
    let error = rules::watch(folder.path().join("none.yaml"), Extractors::new()).unwrap_err();
    assert!(error.to_string().contains("the file can't be read"), "{error}");
}

#[test]
fn watching_needs_a_runtime() {
    let folder = Folder::new();
    let path = folder.write("limits.yaml", yaml("a", 1));
    let error = rules::watch(path, Extractors::new()).unwrap_err();
    assert!(error.to_string().contains("there is no Tokio runtime"), "{error}");
}

/// The runtime has one thread, so nothing else would run if it parsed the file.
#[tokio::test]
async fn parsing_a_file_does_not_block_the_runtime() {
    use std::sync::mpsc;

    let folder = Folder::new();
    let path = folder.write("limits.yaml", yaml("a", 9));
    let (reloading, mut is_reloading) = tokio::sync::mpsc::unbounded_channel();
    let (proceed, may_proceed) = mpsc::channel();
    let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
    let may_proceed = Mutex::new(may_proceed);
    let _rules = rules::watch(&path, Extractors::new()).unwrap().observe(move |_| {
        // Sent by the thread that has parsed the file.
        reloading.send(()).unwrap();
        let went_on = may_proceed.lock().unwrap().recv_timeout(Duration::from_secs(30)).is_ok();
        done.send((went_on, std::thread::current().id())).unwrap();
    });
    tokio::spawn(async move {
        while is_reloading.recv().await.is_some() {
            proceed.send(()).unwrap();
        }
    });
    for text in [yaml("b", 9), "domain: shop\ndescriptors: 5\n".to_owned()] {
        fs::write(&path, text).unwrap();
        let (went_on, thread) = is_done.recv().await.unwrap();
        assert!(went_on, "no other task ran while the file was taken up");
        assert_ne!(thread, std::thread::current().id());
    }
}

#[cfg(unix)]
fn make_fifo(path: &str) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Opening a pipe blocks until another process writes to it.
#[cfg(unix)]
#[test]
fn a_watched_file_that_becomes_a_pipe_is_reported_and_blocks_nothing() {
    use std::sync::mpsc;

    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reported = runtime.block_on(async {
            let folder = Folder::new();
            let path = folder.write("limits.yaml", yaml("a", 9));
            let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
            let _rules = rules::watch(&path, Extractors::new()).unwrap().observe(move |event| {
                let _ = report.send(match event {
                    Event::LimitsRejected { error, .. } => error.to_string(),
                    other => format!("{other:?}"),
                });
            });
            make_fifo(&format!("{path}.next"));
            fs::rename(format!("{path}.next"), &path).unwrap();
            let rejected = tokio::time::timeout(Duration::from_secs(20), reported.recv()).await;
            // The file may return.
            fs::rename(folder.write("next", yaml("b", 9)), &path).unwrap();
            let replaced = tokio::time::timeout(Duration::from_secs(20), reported.recv()).await;
            (rejected, replaced)
        });
        drop(runtime);
        let _ = done.send(reported);
    });
    let reported = is_done.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
    let (Ok(Some(rejected)), Ok(Some(replaced))) = reported else { panic!("nothing was reported: {reported:?}") };
    let expected =
        "limits.yaml: the file can't be read: it is a pipe or a device: use a regular file, or a link to one";
    assert!(rejected.ends_with(expected), "{rejected}");
    assert_eq!(replaced, REPLACED);
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    let folder = Folder::new();
    let pipe = folder.path().join("pipe").to_str().unwrap().to_owned();
    make_fifo(&pipe);
    let of = |path: &str| rules::from_file(path, &Extractors::new()).unwrap_err().to_string();
    let is = |what: &str| format!(": the file can't be read: it is {what}: use a regular file, or a link to one");
    // On a failure, this test hangs until the test runner stops it.
    assert!(of(&pipe).ends_with(&is("a pipe or a device")), "{}", of(&pipe));
    assert!(of("/dev/zero").ends_with(&is("a pipe or a device")), "{}", of("/dev/zero"));
    assert!(of(folder.path().to_str().unwrap()).ends_with(&is("a folder")));
}

#[tokio::test]
async fn an_empty_file_removes_all_limits() {
    let limits = rules::from_yaml("domain: shop\ndescriptors: []", &Extractors::new()).unwrap();
    let app = app(RateLimitLayer::new(limits));
    for _ in 0..3 {
        let answer = visit(&app, "/", "ann").await;
        assert_eq!(answer.status, http::StatusCode::OK);
        assert!(left(&answer).is_empty());
    }
}
