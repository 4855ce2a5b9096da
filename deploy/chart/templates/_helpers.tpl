{{- define "tessera.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: tessera
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* What never changes in the life of a release: selectors cannot. */ -}}
{{- define "tessera.selector" -}}
app.kubernetes.io/name: tessera-{{ . }}
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{- define "tessera.image" -}}
{{ .repository }}:{{ .tag }}
{{- end -}}

{{- /* The text of a file of deploy/, with this release's names put in. */ -}}
{{- define "tessera.text" -}}
{{- $text := .root.Files.Get (print "files/" .path) -}}
{{- if not $text }}{{ fail (print "The chart is broken: files/" .path " is missing.") }}{{ end -}}
{{- $text = $text | replace "tessera-system" .root.Release.Namespace | replace "tessera-agents" .root.Values.agent.namespace -}}
{{- $set := .root.Values.extender.settings -}}
{{- range $setting, $name := dict "memory_resource" "nvidia.com/gpu-memory" "utilization_resource" "nvidia.com/gpu-utilization" "share_resource" "tessera.gpu/share" -}}
{{- $text = $text | replace $name (get $set $setting | default $name) -}}
{{- end -}}
{{- $classes := list "nvidia" .root.Values.agent.runtimeClassName (get $set "runtime_class") | compact | uniq -}}
{{- $text = $text | replace `["nvidia"]` (toJson $classes) -}}
{{- $text -}}
{{- end -}}

{{- /* The objects of a file of deploy/, with our labels. Those of the kinds in `skip` are made elsewhere. */ -}}
{{- define "tessera.objects" -}}
{{- $root := .root -}}{{- $skip := .skip | default list -}}{{- $annotations := .annotations | default dict -}}
{{- range splitList "\n---\n" (include "tessera.text" .) }}
{{- $object := fromYaml . }}
{{- if not (has $object.kind $skip) }}
{{- $metadata := mergeOverwrite (dict "labels" (include "tessera.labels" $root | fromYaml)) $object.metadata }}
{{- if $annotations }}{{ $_ := set $metadata "annotations" $annotations }}{{ end }}
---
{{ set $object "metadata" $metadata | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tessera.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tessera.ownScheduler" -}}
{{- if eq .Values.layout "own-scheduler" }}yes{{ end -}}
{{- end -}}

{{- /* The extender's settings file: what follows from the values, then what they say. */ -}}
{{- define "tessera.settings" -}}
{{- $made := dict "probe_port" 8581 "agent_namespace" .Values.agent.namespace -}}
{{- if include "tessera.ownScheduler" . -}}
{{- $made = merge $made (dict "lead" "follow" "lease_namespace" .Release.Namespace "lease_name" .Values.scheduler.name "scheduler_name" .Values.scheduler.name) -}}
{{- else -}}
{{- $made = merge $made (dict "lead" "lease" "host" "0.0.0.0" "tls_cert" "/run/tessera/tls/tls.crt" "tls_key" "/run/tessera/tls/tls.key" "tls_client_ca" "/run/tessera/tls/ca.crt") -}}
{{- with .Values.extender.tls.clientNames }}{{ $_ := set $made "tls_client_names" (join "," .) }}{{ end -}}
{{- end -}}
{{- if .Values.webhook.enabled -}}
{{- $_ := set $made "webhook_port" 9443 -}}
{{- if ne .Values.webhook.certificates.mode "self-signed" -}}
{{- $made = merge $made (dict "webhook_certificates" "files" "webhook_cert" "/run/tessera/webhook/tls.crt" "webhook_key" "/run/tessera/webhook/tls.key") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.agent.runtimeClassName (not (hasKey .Values.extender.settings "runtime_class")) -}}
{{- $_ := set $made "runtime_class" .Values.agent.runtimeClassName -}}
{{- end -}}
{{- merge $made .Values.extender.settings | toYaml -}}
{{- end -}}

{{- /* kube-scheduler's configuration: the shipped file, with a name and a Lease of its own, and the pod's account. */ -}}
{{- define "tessera.scheduler" -}}
{{- $config := include "tessera.text" (dict "root" . "path" "scheduler/config.yaml") | fromYaml -}}
{{- $config = unset $config "clientConnection" -}}
{{- $config = set $config "leaderElection" (dict "leaderElect" true "resourceNamespace" .Release.Namespace "resourceName" .Values.scheduler.name) -}}
{{- set $config "profiles" (list (dict "schedulerName" .Values.scheduler.name)) | toYaml -}}
{{- end -}}
