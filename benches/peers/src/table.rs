//! Tables in Markdown.

use std::fmt::Display;

pub struct Table {
    columns: usize,
}

impl Table {
    /// Prints the title and the header row.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        println!("\n{title}\n");
        println!("| {} |", columns.join(" | "));
        println!("|---|{}", "---:|".repeat(columns.len() - 1));
        Self { columns: columns.len() }
    }

    pub fn row(&self, name: &str, cells: &[&dyn Display]) {
        assert_eq!(cells.len() + 1, self.columns, "cells of {name}");
        let cells: Vec<String> = cells.iter().map(|cell| cell.to_string()).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }

    /// Prints a row for a subject that cannot be measured, and why.
    pub fn without(&self, name: &str, why: &str) {
        println!("| {name} | {why}{} |", " |".repeat(self.columns - 2));
    }
}
