//! Costs of layers and routes that exceed the capacity of limits from a file.

use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{CostTable, Limit, LiveLimits, RateLimitLayer};

use support::redis_server::Folder;

fn yaml(fields: &str) -> String {
    format!(
        "domain: shop\ndescriptors:\n- key: header.x-user\n  rate_limit: {{ name: small, unit: day, \
         requests_per_unit: 5{fields} }}\n"
    )
}

fn limits(fields: &str) -> Vec<Limit> {
    rules::from_yaml(&yaml(fields), &Extractors::new()).unwrap()
}

fn table() -> CostTable {
    CostTable::new().path("/report", 10)
}

const TOO_SMALL: &str = "4:15: a cost of 10 can never pass the limit \"small\", which holds 5: lower the cost, raise the \
                         limit, or set its field `cost`";

#[test]
fn a_limit_that_is_too_small_for_a_cost_is_an_error_with_its_position_at_start() {
    let built = RateLimitLayer::builder(limits("")).costs(table()).try_build();
    assert_eq!(built.unwrap_err().to_string(), TOO_SMALL);
    let live = LiveLimits::new(limits(""));
    assert_eq!(RateLimitLayer::live_builder(&live).costs(table()).try_build().unwrap_err().to_string(), TOO_SMALL);
    let route = RateLimitLayer::new(limits("")).try_cost(10);
    assert_eq!(route.unwrap_err().to_string(), TOO_SMALL);

    let folder = Folder::new();
    let path = folder.write("limits.yaml", yaml(""));
    let limits = rules::from_file(&path, &Extractors::new()).unwrap();
    let error = RateLimitLayer::builder(limits).costs(table()).try_build().unwrap_err();
    assert_eq!(error.to_string(), format!("{path}:{TOO_SMALL}"));
}

#[test]
fn a_cost_may_exceed_a_limit_that_is_soft_or_overridable() {
    assert_eq!(limits(", soft: 20%, cost: 6").len(), 1);
    assert_eq!(limits(", overridable: true, cost: 6").len(), 1);
    let error = rules::from_yaml(&yaml(", soft: 20%, cost: 7"), &Extractors::new()).unwrap_err().to_string();
    assert!(error.contains("a `cost` of 7 can never pass a limit of 6"), "{error}");
}

#[test]
fn the_field_cost_makes_a_small_limit_independent_of_the_table() {
    assert!(RateLimitLayer::builder(limits(", cost: 1")).costs(table()).try_build().is_ok());
}

#[test]
fn a_limit_in_shadow_mode_may_be_smaller_than_a_cost_until_it_is_enforced() {
    let shadow = || limits(", shadow_mode: true");
    assert!(RateLimitLayer::builder(shadow()).costs(table()).try_build().is_ok());
    assert!(RateLimitLayer::new(shadow()).try_cost(10).is_ok());
    let live = LiveLimits::new(shadow());
    let _layer = RateLimitLayer::live_builder(&live).costs(table()).try_build().unwrap();
    assert!(live.replace(shadow()).is_ok());
    assert_eq!(live.replace(limits("")).unwrap_err().to_string(), TOO_SMALL);
}

#[test]
fn a_layer_in_shadow_mode_starts_with_limits_that_are_smaller_than_its_costs() {
    assert!(RateLimitLayer::builder(limits("")).costs(table()).shadow().try_build().is_ok());
    let live = LiveLimits::new(limits(""));
    let layer = RateLimitLayer::live_builder(&live).costs(table()).shadow().try_build().unwrap();
    assert!(live.replace(limits("")).is_ok());
    assert!(layer.try_cost(20).is_ok());
    // An enforced layer with the same limits must still be able to allow its costs.
    assert!(RateLimitLayer::live_builder(&live).costs(table()).try_build().is_err());
}
