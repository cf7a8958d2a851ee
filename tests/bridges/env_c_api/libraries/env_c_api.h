// The C interface to environments, in the versions 1.4, 2.0, 2.1 and 2.2.
// Compile with -DENV_C_API_VERSION=14, 20, 21 or 22.
#ifndef TESTS_ENV_C_API_H_
#define TESTS_ENV_C_API_H_

#include <stdint.h>

#if !defined(ENV_C_API_VERSION)
#error "say which version: -DENV_C_API_VERSION=14, 20, 21 or 22"
#endif

typedef enum { kRunning, kInterrupted, kError, kTerminated } EnvCApi_EnvironmentStatus;

typedef enum {
  kDoubles,
  kBytes,
  kString,
#if ENV_C_API_VERSION >= 21
  kInt32s,
  kInt64s,
#endif
} EnvCApi_ObservationType;

typedef struct {
  EnvCApi_ObservationType type;
  int dims;
  const int* shape;
} EnvCApi_ObservationSpec;

typedef struct {
  EnvCApi_ObservationSpec spec;
  union {
    const double* doubles;
    const unsigned char* bytes;
    const char* string;
#if ENV_C_API_VERSION >= 21
    const int32_t* int32s;
    const int64_t* int64s;
#endif
  } payload;
} EnvCApi_Observation;

typedef struct {
  int id;
  int observation_count;
  const EnvCApi_Observation* observations;
} EnvCApi_Event;

typedef struct {
  const char* data;
  uint64_t len;
} EnvCApi_TextAction;

typedef enum { kReadable = 1, kWritable = 2, kListable = 4 } EnvCApi_PropertyAttributes;

typedef enum { kSuccess, kNotFound, kPermissionDenied, kInvalidArgument } EnvCApi_PropertyResult;

typedef void (*EnvCApi_PropertyCallback)(void* userdata, const char* key,
                                         EnvCApi_PropertyAttributes attributes);

typedef struct {
  int (*setting)(void*, const char* key, const char* value);
  int (*init)(void*);
  int (*start)(void*, int episode, int seed);
  void (*release_context)(void*);
  const char* (*error_message)(void*);
  EnvCApi_PropertyResult (*write_property)(void*, const char* key, const char* value);
  EnvCApi_PropertyResult (*read_property)(void*, const char* key, const char** value);
  EnvCApi_PropertyResult (*list_property)(void*, void* userdata, const char* key,
                                          EnvCApi_PropertyCallback);
  const char* (*environment_name)(void*);
  int (*action_discrete_count)(void*);
  int (*action_continuous_count)(void*);
  int (*action_text_count)(void*);
  const char* (*action_discrete_name)(void*, int);
  const char* (*action_continuous_name)(void*, int);
  const char* (*action_text_name)(void*, int);
  void (*action_discrete_bounds)(void*, int, int* minimum, int* maximum);
  void (*action_continuous_bounds)(void*, int, double* minimum, double* maximum);
  int (*observation_count)(void*);
  const char* (*observation_name)(void*, int);
  void (*observation_spec)(void*, int, EnvCApi_ObservationSpec*);
  int (*event_type_count)(void*);
  const char* (*event_type_name)(void*, int);
#if ENV_C_API_VERSION == 14
  int (*fps)(void*);
#endif
  void (*observation)(void*, int, EnvCApi_Observation*);
  int (*event_count)(void*);
  void (*event)(void*, int, EnvCApi_Event*);
#if ENV_C_API_VERSION == 14
  void (*act)(void*, const int discrete[], const double continuous[]);
#endif
  void (*act_discrete)(void*, const int[]);
  void (*act_continuous)(void*, const double[]);
  void (*act_text)(void*, const EnvCApi_TextAction[]);
  EnvCApi_EnvironmentStatus (*advance)(void*, int num_steps, double* reward);
} EnvCApi;

#endif  // TESTS_ENV_C_API_H_
