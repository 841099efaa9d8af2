//! Invalid files with a problem of each descriptor: `broken/NAME.yaml`, with the expected errors in `broken/NAME.txt`.
//! With `UPDATE_EXPECTED=1`, the errors are written there, for review.

use std::path::{Path, PathBuf};
use std::{env, fs};

use tower_ratelimit::key;
use tower_ratelimit::rules::{self, Extractors};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules/broken");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension != "txt"));
    files.sort();
    files
}

/// With paths relative to the folder of the file.
fn reported(file: &Path) -> String {
    let extractors = Extractors::new().register("plan", key::header("x-plan"));
    let error = rules::from_file(file, &extractors).expect_err(&format!("{file:?} is right"));
    let folder = format!("{}/", file.parent().unwrap().display());
    format!("{error}\n").replace(&folder, "")
}

#[test]
fn a_problem_of_each_invalid_descriptor_is_reported() {
    let files = files();
    assert!(files.len() >= 30, "only {} files were found", files.len());
    let mut wrong = String::new();
    for file in files {
        let reported = reported(&file);
        let expected = file.with_extension("txt");
        if env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&expected, &reported).unwrap();
        }
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        if reported != expected {
            wrong += &format!("{}\nexpected:\n{expected}reported:\n{reported}\n", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = rules::from_file("no/such/file.yaml", &Extractors::new()).unwrap_err();
    assert!(error.to_string().starts_with("no/such/file.yaml: the file can't be read: "), "{error}");
    assert_eq!((error.problems()[0].line(), error.problems()[0].column()), (0, 0));
}

#[test]
fn without_a_file_errors_begin_with_the_line() {
    let error = rules::from_yaml("domain: shop\ndescriptors: 5", &Extractors::new()).unwrap_err();
    assert_eq!(error.to_string(), "2:14: `descriptors` is \"5\": write a list, with a dash before each item");
}
