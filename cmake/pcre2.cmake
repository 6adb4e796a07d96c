# PCRE2 knows the letters of all scripts, of which vocabularies make words:
# examples/llama and its test are left out without it.
find_library(dtensor_pcre2 pcre2-8)
find_path(dtensor_pcre2_headers pcre2.h)
mark_as_advanced(dtensor_pcre2 dtensor_pcre2_headers)

# dtensor_reads_llama(<target>): the target has examples/llama in it.
function(dtensor_reads_llama target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  target_link_libraries(${target} PRIVATE ${dtensor_pcre2})
  target_include_directories(${target} PRIVATE ${dtensor_pcre2_headers})
endfunction()
