//! Envoy's rate limit service as JSON over HTTP: `POST /json`, in the JSON form of its messages.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{App, envoy};

/// Answers with 200 or 429, or with 503 if the store does not decide. The content type has to be that of JSON, so that
/// no page in a browser on this machine can call it.
pub(crate) async fn should_rate_limit(State(app): State<App>, call: Result<Json<Call>, JsonRejection>) -> Response {
    let call = match call {
        Ok(Json(call)) => call,
        Err(error) => return (error.status(), error.body_text() + "\n").into_response(),
    };
    match envoy::should_rate_limit(&app, call.into()).await {
        Ok(answer) => {
            let is_allowed = answer.overall_code == i32::from(Code::Ok);
            let status = if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            let mut response = (status, Json(of_answer(&answer))).into_response();
            for header in &answer.response_headers_to_add {
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(&header.key), HeaderValue::try_from(&header.value))
                {
                    response.headers_mut().insert(name, value);
                }
            }
            response
        }
        Err(error) => {
            let status = match error.code() {
                tonic::Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                tonic::Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
                _ => StatusCode::BAD_REQUEST,
            };
            (status, format!("{}\n", error.message())).into_response()
        }
    }
}

/// A `RateLimitRequest`. As in the JSON form of protocol buffers, names are in camel case or in snake case, and numbers
/// may be strings.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Call {
    #[serde(default)]
    pub(crate) domain: String,
    #[serde(default)]
    pub(crate) descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) entries: Vec<JsonEntry>,
    limit: Option<Value>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonEntry {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) value: String,
}

/// Reads a number, which may be a string.
fn number<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let number = match &value {
        None => return Ok(None),
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_u64(),
    };
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| serde::de::Error::custom("write a whole number that is not negative"))
}

impl From<Call> for RateLimitRequest {
    fn from(call: Call) -> Self {
        let descriptors = call.descriptors.into_iter().map(Into::into).collect();
        Self { domain: call.domain, descriptors, hits_addend: call.hits_addend.unwrap_or(0) }
    }
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entries = descriptor.entries.into_iter().map(|JsonEntry { key, value }| Entry { key, value });
        Self {
            entries: entries.collect(),
            // Only whether there is one matters.
            limit: descriptor.limit.map(|_| RateLimitOverride::default()),
            hits_addend: descriptor.hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

fn of_answer(answer: &RateLimitResponse) -> Value {
    let headers =
        answer.response_headers_to_add.iter().map(|header| json!({ "key": header.key, "value": header.value }));
    json!({
        "overallCode": code(answer.overall_code),
        "statuses": answer.statuses.iter().map(of_status).collect::<Vec<_>>(),
        "responseHeadersToAdd": headers.collect::<Vec<_>>(),
    })
}

fn of_status(status: &DescriptorStatus) -> Value {
    let mut json = json!({ "code": code(status.code) });
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap_or_default().as_str_name();
        json["currentLimit"] = json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit });
        json["limitRemaining"] = status.limit_remaining.into();
    }
    if let Some(reset) = &status.duration_until_reset {
        json["durationUntilReset"] = format!("{}.{:09}s", reset.seconds, reset.nanos).into();
    }
    json
}

fn code(code: i32) -> &'static str {
    Code::try_from(code).unwrap_or_default().as_str_name()
}
